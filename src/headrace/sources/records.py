"""Rows that came as Python objects, as chunks: records of a query, samples of an archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.sources.row_dicts import make_dicts


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
