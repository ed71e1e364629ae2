"""Rows in memory as plain Python: lines, and columns of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from headrace.sources.row_dicts import make_dicts
from headrace.sources.source import Chunk

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
