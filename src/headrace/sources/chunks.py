"""Rows in memory: Python objects, columns, and text that is not split yet."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from headrace.base.indices import Indices
from headrace.base.lazy_column import LazyColumn
from headrace.sources.source import Chunk

Records: TypeAlias = Iterable[Sequence[Any]]


def make_dicts(names: Sequence[str], records: Records) -> list[dict[str, Any]]:
    """A dict for each record, which has as many values as there are names."""
    return _maker(tuple(names))(records)


@functools.lru_cache(maxsize=64)
def _maker(names: tuple[str, ...]) -> Callable[[Records], list[dict[str, Any]]]:
    """Compiled for these names, as `namedtuple` does it: three times as fast as `dict(zip(names, record))`."""
    values = "".join(f"v{i}, " for i in range(len(names)))
    fields = ", ".join(f"{name!r}: v{i}" for i, name in enumerate(names))
    maker: Callable[[Records], list[dict[str, Any]]] = eval(f"lambda records: [{{{fields}}} for ({values}) in records]")
    return maker


_DTYPES: Mapping[str, Any] = {"int": np.int64, "float": np.float64, "bool": np.bool_}


class ValueChunk:
    """Rows that are values of their own, like lines: one column, under a name that the source gives it."""

    def __init__(self, values: list[Any], column: str) -> None:
        self._values = values
        self._column = column

    def __len__(self) -> int:
        return len(self._values)

    def slice(self, start: int, stop: int) -> ValueChunk:
        return ValueChunk(self._values[start:stop], self._column)

    def rows(self) -> list[Any]:
        return self._values

    def columns(self) -> dict[str, Any]:
        return {self._column: self._values}


class SplitChunk:
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

    def slice(self, start: int, stop: int) -> ValueChunk:
        rows = self.rows()
        self._rows = rows if stop < self._n_rows else None
        return ValueChunk(rows[start:stop], self._column)

    def rows(self) -> list[str]:
        return split_text(self.whole, self.separator) if self._rows is None else self._rows

    def columns(self) -> dict[str, list[str]]:
        return {self._column: self.rows()}

    def cut(self, start: int, stop: int) -> SplitChunk:
        """The rows [start, stop), still as text."""
        whole = self.whole if (start, stop) == (0, self._n_rows) else self.text(start, stop)
        return SplitChunk(whole, self.separator, stop - start, self._column)

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


class ColumnChunk:
    """Columns of known types, as lists; None is null. It gives what a `TableChunk` of the same values gives.

    Args:
        types: "int", "float", "bool" or "str" for each column.
    """

    def __init__(self, values: Mapping[str, list[Any]], types: Mapping[str, str], n_rows: int) -> None:
        self._values = values
        self._types = types
        self._n_rows = n_rows

    def __len__(self) -> int:
        return self._n_rows

    def slice(self, start: int, stop: int) -> ColumnChunk:
        part = {name: values[start:stop] for name, values in self._values.items()}
        return ColumnChunk(part, self._types, stop - start)

    def rows(self) -> list[Any]:
        return make_dicts(list(self._values), zip(*self._values.values(), strict=True))

    def columns(self) -> dict[str, Any]:
        return {name: self._column(name, values) for name, values in self._values.items()}

    def _column(self, name: str, values: list[Any]) -> Any:
        kind = self._types[name]
        if kind == "str" or (kind != "float" and None in values):
            return values
        return np.array(values, _DTYPES[kind])


def skip_rows(chunks: Iterable[Chunk], first_row: int) -> Iterator[Chunk]:
    """The chunks without their first rows, and without those that are empty."""
    for chunk in chunks:
        n = len(chunk)
        if n > first_row:
            yield chunk.slice(first_row, n) if first_row else chunk
        first_row = max(0, first_row - n)


class RecordChunk:
    """Records of the same fields, each a tuple.

    In `columns()`, a column of ints, of floats or of bools is an array; None is NaN among floats, and makes a list of
    any other column.
    """

    def __init__(self, names: Sequence[str], records: Sequence[tuple[Any, ...]]) -> None:
        self.names = names
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def slice(self, start: int, stop: int) -> RecordChunk:
        return RecordChunk(self.names, self.records[start:stop])

    def rows(self) -> list[Any]:
        return make_dicts(self.names, self.records)

    def columns(self) -> dict[str, Any]:
        values = zip(*self.records, strict=True) if self.records else ((),) * len(self.names)
        return dict(zip(self.names, map(as_column, values), strict=True))


class SampleChunk:
    """Samples that are dicts, each with fields of its own; where one lacks a field, the column has None."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def slice(self, start: int, stop: int) -> SampleChunk:
        return SampleChunk(self.samples[start:stop])

    def rows(self) -> list[Any]:
        return self.samples

    def columns(self) -> dict[str, Any]:
        names = dict.fromkeys(name for sample in self.samples for name in sample)
        return {name: as_column([sample.get(name) for sample in self.samples]) for name in names}


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
