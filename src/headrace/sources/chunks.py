"""Rows in memory: Python objects, text that is not split yet, columns, and several chunks as one."""

from __future__ import annotations

import functools
import pickle
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from headrace.base.indices import Indices
from headrace.base.lazy_column import LazyColumn, materialize
from headrace.sources.source import Chunk

Records: TypeAlias = Iterable[Sequence[Any]]

_FEWEST_TO_GET = 2  # objects, of which `itemgetter` gives a tuple
_DTYPES: Mapping[str, Any] = {"int": np.int64, "float": np.float64, "bool": np.bool_}


class ObjectChunk(Chunk):
    """Rows that are Python objects: lines, tokens, dicts, whatever a user's function returned.

    Args:
        objects: a list; tokens may be an array.
        column: what their only column is called; None for one column per key if they are dicts, else "value".
    """

    def __init__(self, objects: Any, column: str | None = None) -> None:
        self._objects = objects
        self.column = column

    def __len__(self) -> int:
        return len(self._objects)

    def slice(self, start: int, stop: int) -> Chunk:
        return ObjectChunk(self._objects[start:stop], self.column)

    def rows(self) -> Any:
        return self._objects

    def columns(self) -> dict[str, Any]:
        rows = self.rows()
        if self.column is None and len(rows) and isinstance(rows[0], Mapping):
            return {name: _stack([row[name] for row in rows]) for name in rows[0]}
        return {self.column or "value": rows}


class PickedChunk(ObjectChunk):
    """Some of a list of objects, in any order, which are picked when they are wanted: while they are in the cache."""

    def __init__(self, objects: list[Any], places: Indices) -> None:
        super().__init__(objects)
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def slice(self, start: int, stop: int) -> Chunk:
        return PickedChunk(self._objects, self._places[start:stop])

    def rows(self) -> list[Any]:
        return pick_objects(self._objects, self._places)


class RecordChunk(Chunk):
    """Records as a source has them: tuples of the same fields, or dicts, each with fields of its own.

    In `columns()`, a column of ints, of floats or of bools is an array; None is NaN among floats, and makes a list of
    any other column. A field that a dict lacks is None.

    Args:
        names: of the fields of tuples.
    """

    def __init__(self, records: Sequence[Any], names: Sequence[str] | None = None) -> None:
        self._records = records
        self._names = names

    def __len__(self) -> int:
        return len(self._records)

    def slice(self, start: int, stop: int) -> Chunk:
        return RecordChunk(self._records[start:stop], self._names)

    def rows(self) -> Any:
        return self._records if self._names is None else make_dicts(self._names, self._records)

    def columns(self) -> dict[str, Any]:
        names, records = self._names, self._records
        if names is None:
            names = list(dict.fromkeys(name for record in records for name in record))
            return {name: as_column([record.get(name) for record in records]) for name in names}
        values = zip(*records, strict=True) if records else ((),) * len(names)
        return dict(zip(names, map(as_column, values), strict=True))


class ColumnChunk(Chunk):
    """Rows that are columns: arrays, lists and lazy columns of one length, which are sliced when they are wanted.

    Args:
        n_rows: their length, if that is known to be the same.

    Raises:
        ValueError: their lengths differ.
    """

    def __init__(self, columns: Mapping[str, Any], n_rows: int | None = None) -> None:
        self._columns = dict(columns)
        self._start, self._stop = 0, _length(self._columns) if n_rows is None else n_rows

    @classmethod
    def joined(cls, parts: Sequence[Mapping[str, Any]]) -> ColumnChunk:
        """All rows of the parts, one after the other; a column that a part lacks is null there."""
        return cls({name: join_columns(columns) for name, columns in by_name(parts).items()})

    def with_constants(self, values: Mapping[str, Any], types: Mapping[str, str]) -> ColumnChunk:
        """The same rows with more columns, each of one value; those that it has itself stay."""
        n = self._stop
        more = {name: TypedColumn([value] * n, types[name]) for name, value in values.items()}
        return ColumnChunk({**self._columns, **{name: more[name] for name in more if name not in self._columns}}, n)

    def __len__(self) -> int:
        return self._stop - self._start

    def slice(self, start: int, stop: int) -> Chunk:
        part = ColumnChunk(self._columns, 0)
        part._start, part._stop = self._start + start, self._start + stop
        return part

    def rows(self) -> list[Any]:
        if not self._columns:
            return [{} for _ in range(len(self))]
        values = (_objects(column, self._start, self._stop) for column in self._columns.values())
        return make_dicts(tuple(self._columns), zip(*values, strict=True))

    def columns(self) -> dict[str, Any]:
        return {name: materialize(column) for name, column in self.lazy_columns().items()}

    def lazy_columns(self) -> dict[str, Any]:
        rows = slice(self._start, self._stop)
        return {name: column[rows] for name, column in self._columns.items()}

    def __reduce__(self) -> Any:
        rows = slice(self._start, self._stop)
        parts = {n: c.part(rows) if isinstance(c, LazyColumn) else c[rows] for n, c in self._columns.items()}
        return ColumnChunk, (parts, len(self))


class JoinedChunk(Chunk):
    """Chunks, one after the other, as one."""

    def __init__(self, chunks: Collection[Chunk]) -> None:
        self._chunks = [part for chunk in chunks for part in chunk.parts() if len(part)]
        self._ends = list(accumulate(map(len, self._chunks)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def slice(self, start: int, stop: int) -> Chunk:
        parts = [chunk.slice(first, last) for chunk, first, last in self.spans(start, stop)]
        return parts[0] if len(parts) == 1 else JoinedChunk(parts)

    def spans(self, start: int, stop: int) -> Iterator[tuple[Chunk, int, int]]:
        """The chunks that have the rows [start, stop), and which of their rows these are."""
        i = bisect_right(self._ends, start)
        first = self._ends[i - 1] if i else 0
        while first < stop and i < len(self._chunks):
            end = self._ends[i]
            yield self._chunks[i], max(start - first, 0), min(stop, end) - first
            first, i = end, i + 1

    def rows(self) -> list[Any]:
        objects: list[Any] = []
        for chunk in self._chunks:
            objects += chunk.rows()  # which is a fourth of the time of chaining them
        return objects

    def columns(self) -> dict[str, Any]:
        return ColumnChunk.joined([chunk.columns() for chunk in self._chunks]).columns()

    def parts(self) -> Sequence[Chunk]:
        return self._chunks


class TextChunk(Chunk):
    """A text that is split when its rows are wanted. It forgets them with the last one: so they stay in the cache.

    Args:
        separator: of its rows; see `split_text`.
        n_rows: how many rows it has.
    """

    def __init__(self, text: str, separator: str | None, n_rows: int, column: str) -> None:
        self.whole = text
        self.separator = separator
        self._n_rows = n_rows
        self._column = column
        self._rows: list[str] | None = None

    def __len__(self) -> int:
        return self._n_rows

    def slice(self, start: int, stop: int) -> Chunk:
        rows = self.rows()
        self._rows = rows if stop < self._n_rows else None
        return ObjectChunk(rows[start:stop], self._column)

    def rows(self) -> list[str]:
        return split_text(self.whole, self.separator) if self._rows is None else self._rows

    def columns(self) -> dict[str, list[str]]:
        return {self._column: self.rows()}

    def cut(self, start: int, stop: int) -> TextChunk:
        """The rows [start, stop), still as text."""
        whole = self.whole if (start, stop) == (0, self._n_rows) else self.text(start, stop)
        return TextChunk(whole, self.separator, stop - start, self._column)

    def text(self, start: int, stop: int) -> str:
        """What `split_text` makes the rows [start, stop) of. It is the quicker, the nearer they are to an end."""
        if start == stop:
            return ""
        text = _without_first(self.whole, self.separator, start, self._n_rows - start)
        return _without_last(text, self.separator, self._n_rows - stop, stop - start)


def split_text(text: str, separator: str | None) -> list[str]:
    """The rows of a text: what is between separators, or if None, between white space.

    What follows the last separator is one too, unless it is empty.
    """
    rows = text.split(separator)
    if separator is not None and not rows[-1]:
        del rows[-1]
    return rows


def _without_first(text: str, separator: str | None, n: int, n_left: int) -> str:
    """A text without its first rows; as many strings are made as there are rows on the smaller side."""
    if n <= n_left:
        return text.split(separator, n)[n] if n else text
    rows = text.rsplit(separator, n_left + _is_ended(text, separator))[1:]
    return (separator or " ").join(rows)


def _without_last(text: str, separator: str | None, n: int, n_left: int) -> str:
    if n <= n_left:
        return text.rsplit(separator, n + _is_ended(text, separator))[0] + (separator or "") if n else text
    rows = text.split(separator, n_left)[:n_left]
    return (separator or " ").join(rows) + (separator or "")


def _is_ended(text: str, separator: str | None) -> bool:
    """Whether a separator follows the last row, too."""
    return separator is not None and text.endswith(separator)


@final
class TypedColumn(LazyColumn):
    """A list of values of one type, of which None is null. A slice becomes what Arrow makes of the same values.

    Args:
        kind: "int", "float", "bool" or "str".
    """

    __slots__ = ("_kind", "_values")

    def __init__(self, values: list[Any], kind: str) -> None:
        self._values = values
        self._kind = kind

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: slice) -> TypedColumn:
        return TypedColumn(self._values[rows], self._kind)

    def materialize(self) -> Any:
        if self._kind == "str" or (self._kind != "float" and None in self._values):
            return self._values
        return np.array(self._values, _DTYPES[self._kind])

    def objects(self, rows: slice) -> list[Any]:
        return self._values[rows]

    def __reduce__(self) -> Any:
        return TypedColumn, (self._values, self._kind)


def make_dicts(names: Sequence[str], records: Records) -> list[dict[str, Any]]:
    """A dict for each record, which has as many values as there are names."""
    return _maker(tuple(names))(records)


@functools.lru_cache(maxsize=64)
def _maker(names: tuple[str, ...]) -> Callable[[Records], list[dict[str, Any]]]:
    """Compiled for these names, as `namedtuple` does it: three times as fast as `dict(zip(names, record))`."""
    if not all(type(name) is str for name in names):  # a user's columns may be called anything
        return lambda records: [dict(zip(names, record, strict=True)) for record in records]
    values = "".join(f"v{i}, " for i in range(len(names)))
    fields = ", ".join(f"{name!r}: v{i}" for i, name in enumerate(names))
    maker: Callable[[Records], list[dict[str, Any]]] = eval(f"lambda records: [{{{fields}}} for ({values}) in records]")
    return maker


def as_column(values: Sequence[Any]) -> Any:
    """Values as an array if they are all ints, all floats (or None, which becomes NaN) or all bools, else as a list."""
    kinds = set(map(type, values))
    if kinds in ({float}, {float, type(None)}):
        return np.array(values, np.float64)
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if kinds == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return list(values)


def by_name(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The columns of several parts, one list for each name; one that a part lacks is null there."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [part[name] if name in part else [None] * _length(part) for part in parts] for name in names}


def join_columns(columns: Sequence[Any]) -> Any:
    """Columns, one after the other, as one."""
    if all(isinstance(column, np.ndarray) for column in columns):
        return columns[0] if len(columns) == 1 else np.concatenate(columns)
    return [value for column in columns for value in _values(column)]


def pick_objects(objects: Sequence[Any], places: Indices) -> list[Any]:
    """The objects at these places."""
    if len(places) < _FEWEST_TO_GET:
        return [objects[place] for place in places.tolist()]
    return list(itemgetter(*places.tolist())(objects))


def _length(columns: Mapping[str, Any]) -> int:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"All columns of a batch must have the same length, got {lengths}.")
    return next(iter(lengths.values()), 0)


def _objects(column: Any, start: int, stop: int) -> Sequence[Any]:
    rows = slice(start, stop)
    return column.objects(rows) if isinstance(column, LazyColumn) else _values(column[rows])


def _values(column: Any) -> Sequence[Any]:
    """The values of a column, one by one: numbers are Python's, tensors stay arrays."""
    if isinstance(column, np.ndarray):
        return list(column) if column.ndim > 1 else column.tolist()
    values: Sequence[Any] = column
    return values


def _stack(values: list[Any]) -> Any:
    """Numbers, and arrays of one shape, as one array; else the list."""
    if all(isinstance(value, (bool, int, float, np.ndarray, np.generic)) for value in values):
        try:
            array = np.array(values)
        except ValueError:  # arrays of different shapes
            return values
        return values if array.dtype == object else array
    return values


def skip_rows(chunks: Iterable[Chunk], first_row: int) -> Iterator[Chunk]:
    """The chunks without their first rows, and without those that are empty."""
    for chunk in chunks:
        n = len(chunk)
        if n > first_row:
            yield chunk.slice(first_row, n) if first_row else chunk
        first_row = max(0, first_row - n)


class SideBySide(NamedTuple):
    """Values that lie one after the other.

    Attributes:
        borders: where each of them begins in memory, and where the last one ends.
    """

    borders: Indices
    memory: Any

    def __reduce__(self) -> Any:
        return SideBySide, (self.borders, pickle.PickleBuffer(self.memory))


class LongValues:
    """Strings or bytes.

    Args:
        parts: where they lie.
        is_text: whether they are strings, as UTF-8.
    """

    def __init__(self, parts: Sequence[SideBySide], *, is_text: bool) -> None:
        self._parts = parts
        self._is_text = is_text

    def __reduce__(self) -> Any:
        return partial(LongValues, is_text=self._is_text), (self._parts,)

    def at(self, places: Indices) -> list[Any]:
        """The values at these places."""
        memories, firsts, begins, ends = self._layout
        parts = np.searchsorted(firsts, places, side="right") - 1
        lying = zip(parts.tolist(), begins[places].tolist(), ends[places].tolist(), strict=True)
        if self._is_text:
            return [str(memories[part][begin:end], "utf-8") for part, begin, end in lying]
        return [memories[part][begin:end].tobytes() for part, begin, end in lying]

    @cached_property
    def _layout(self) -> tuple[list[memoryview], Indices, Indices, Indices]:
        """The memory of each part, and the number of its first value; of each value, where it begins and ends."""
        memories = [memoryview(part.memory).cast("B") for part in self._parts]
        firsts = np.cumsum([0, *(len(part.borders) - 1 for part in self._parts)])[:-1]
        begins = np.concatenate([part.borders[:-1] for part in self._parts])
        ends = np.concatenate([part.borders[1:] for part in self._parts])
        return memories, firsts, begins, ends


@final
class PickedColumn(LazyColumn):
    """Some of many values, in any order."""

    __slots__ = ("_places", "_values")

    def __init__(self, values: LongValues, places: Indices) -> None:
        self._values = values
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, rows: slice) -> PickedColumn:
        return PickedColumn(self._values, self._places[rows])

    def materialize(self) -> list[Any]:
        return self._values.at(self._places)

    def __reduce__(self) -> Any:
        return PickedColumn, (self._values, self._places)
