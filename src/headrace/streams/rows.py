"""The rows of a window in memory, whatever they have been made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

import numpy as np

from headrace.base.indices import Indices
from headrace.base.lazy_column import Allocate, LazyColumn, materialize, placed
from headrace.sources.chunks import ValueChunk
from headrace.sources.source import Chunk

_FEWEST_TO_GET = 2  # objects, of which `itemgetter` gives a tuple


class ObjectRows:
    """Rows that are Python objects: lines, dicts, whatever a user's function returned."""

    def __init__(self, objects: list[Any]) -> None:
        self._objects = objects

    def __len__(self) -> int:
        return len(self._objects)

    def slice(self, start: int, stop: int) -> ObjectRows:
        return ObjectRows(self._objects[start:stop])

    def rows(self) -> list[Any]:
        return self._objects

    def columns(self) -> dict[str, Any]:
        """By the keys of the dicts, if they are dicts; else one column, "value"."""
        if not self._objects or not isinstance(self._objects[0], Mapping):
            return {"value": self._objects}
        return {name: _as_column([row[name] for row in self._objects]) for name in self._objects[0]}


class PickedRows:
    """Some of a list of objects, in any order, which are picked when they are wanted: while they are in the cache."""

    def __init__(self, objects: list[Any], places: Indices) -> None:
        self._objects = objects
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def slice(self, start: int, stop: int) -> PickedRows:
        return PickedRows(self._objects, self._places[start:stop])

    def rows(self) -> list[Any]:
        return _pick_objects(self._objects, self._places)

    def columns(self) -> dict[str, Any]:
        return ObjectRows(self.rows()).columns()


class ArrayRows:
    """Rows that are columns: arrays and lists of one length, some of which may not be made yet.

    Raises:
        ValueError: their lengths differ.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = dict(columns)
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"All columns of a batch must have the same length, got {lengths}.")
        self._n_rows = next(iter(lengths.values()), 0)

    @classmethod
    def joined(cls, parts: Sequence[Mapping[str, Any]]) -> ArrayRows:
        """All rows of the parts, one after the other."""
        return cls({name: _join([_column_of(part, name) for part in parts]) for name in _names(parts)})

    def __len__(self) -> int:
        return self._n_rows

    def slice(self, start: int, stop: int) -> ArrayRows:
        return ArrayRows({name: column[start:stop] for name, column in self._columns.items()})

    def rows(self) -> list[Any]:
        columns = [c.tolist() if isinstance(c, np.ndarray) and c.ndim == 1 else c for c in self.columns().values()]
        return [dict(zip(self._columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def columns(self) -> dict[str, Any]:
        return {name: materialize(column) for name, column in self._columns.items()}

    def lazy_columns(self) -> dict[str, Any]:
        return self._columns


class JoinedRows:
    """Chunks, one after the other, as one."""

    def __init__(self, chunks: Collection[Chunk]) -> None:
        self.chunks = [chunk for chunk in chunks if len(chunk)]
        self._ends = list(accumulate(map(len, self.chunks)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def slice(self, start: int, stop: int) -> Chunk:
        parts = [chunk.slice(first, last) for chunk, first, last in self.parts(start, stop)]
        return parts[0] if len(parts) == 1 else JoinedRows(parts)

    def parts(self, start: int, stop: int) -> Iterator[tuple[Chunk, int, int]]:
        """The chunks that have the rows [start, stop), and which of their rows these are."""
        i = bisect_right(self._ends, start)
        first = self._ends[i - 1] if i else 0
        while first < stop and i < len(self.chunks):
            end = self._ends[i]
            yield self.chunks[i], max(start - first, 0), min(stop, end) - first
            first, i = end, i + 1

    def rows(self) -> list[Any]:
        objects: list[Any] = []
        for chunk in self.chunks:
            objects += chunk.rows()  # which is a fourth of the time of chaining them
        return objects

    def columns(self) -> dict[str, Any]:
        return ArrayRows.joined([chunk.columns() for chunk in self.chunks]).columns()


def lazy_columns(chunk: Chunk) -> dict[str, Any]:
    """The columns, some of which may not be made yet."""
    columns: dict[str, Any] = chunk.lazy_columns() if hasattr(chunk, "lazy_columns") else chunk.columns()
    return columns


def placed_columns(chunk: Chunk, allocate: Allocate | None) -> dict[str, Any]:
    """The same, in memory that another process sees, as far as that is possible."""
    columns = lazy_columns(chunk)
    return columns if allocate is None else {name: placed(column, allocate) for name, column in columns.items()}


def pieces(rows: Chunk, start: int, stop: int) -> Iterable[Chunk]:
    """Some of the rows, in parts as they were read."""
    part = rows.slice(start, stop)
    return part.chunks if isinstance(part, JoinedRows) else (part,)


def own_columns(columns: dict[str, Any], *, is_own: bool = False) -> dict[str, Any]:
    """The columns, whose arrays may be written to: those of a window are often views of somebody else's memory.

    Args:
        is_own: whether nobody else sees the arrays; but small ones may have come in memory that is read-only.
    """
    return {
        name: column.copy() if isinstance(column, np.ndarray) and not (is_own and column.flags.writeable) else column
        for name, column in columns.items()
    }


def as_one(chunks: Sequence[Chunk]) -> Chunk:
    """Chunks as one; as one list, if they are lists already, which is quicker to cut."""
    if len(chunks) > 1 and all(isinstance(chunk, ValueChunk) for chunk in chunks):
        return ValueChunk(list(chain.from_iterable(chunk.rows() for chunk in chunks)), *chunks[0].columns())
    return chunks[0] if len(chunks) == 1 else JoinedRows(chunks)


def every_nth(rows: Chunk, first: int, step: int, *, as_columns: bool) -> Chunk:
    """Every `step`-th row, beginning with number `first`."""
    if step == 1:
        return rows.slice(min(first, len(rows)), len(rows)) if first else rows
    if as_columns:
        return ArrayRows({name: column[first::step] for name, column in rows.columns().items()})
    return ObjectRows(rows.rows()[first::step])


def shuffle_rows(rows: Chunk, places: Indices, *, as_columns: bool, is_later: bool = False) -> Chunk:
    """The rows at these places, in this order.

    Args:
        as_columns: whether they are wanted as columns, which are then not made into rows on the way.
        is_later: whether columns need not be made yet.
    """
    if not as_columns:
        return PickedRows(rows.rows(), places)
    parts = [*map(lazy_columns, pieces(rows, 0, len(rows)))] if is_later else [rows.columns()]
    return ArrayRows({name: _pick_joined([_column_of(part, name) for part in parts], places) for name in _names(parts)})


def _as_column(values: list[Any]) -> Any:
    if all(isinstance(value, (bool, int, float, np.ndarray, np.generic)) for value in values):
        try:
            array = np.array(values)
        except ValueError:  # arrays of different shapes
            return values
        return values if array.dtype == object else array
    return values


def _names(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))


def _column_of(part: Mapping[str, Any], name: str) -> Any:
    """A column that some rows do not have is null for them."""
    return part[name] if name in part else [None] * len(next(iter(part.values())))


def _join(columns: list[Any]) -> Any:
    if all(isinstance(column, np.ndarray) for column in columns):
        return columns[0] if len(columns) == 1 else np.concatenate(columns)
    return [value for column in columns for value in _values(column)]


def _values(column: Any) -> Sequence[Any]:
    """The values of a column, one by one: numbers are Python's, tensors stay arrays."""
    if isinstance(column, np.ndarray):
        return list(column) if column.ndim > 1 else column.tolist()
    values: Sequence[Any] = column
    return values


def _pick_joined(columns: list[Any], places: Indices) -> Any:
    first, *others = columns
    picked = first.pick(others, places) if isinstance(first, LazyColumn) else None
    return _pick(_join([*map(materialize, columns)]), places) if picked is None else picked


def _pick(column: Any, places: Indices) -> Any:
    return column[places] if isinstance(column, np.ndarray) else _pick_objects(column, places)


def _pick_objects(objects: Sequence[Any], places: Indices) -> list[Any]:
    if len(places) < _FEWEST_TO_GET:
        return [objects[place] for place in places.tolist()]
    return list(itemgetter(*places.tolist())(objects))
