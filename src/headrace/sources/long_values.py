"""Long strings and bytes that lie in several pieces of memory, and are made when they are wanted."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, final

import numpy as np

from headrace.base.indices import Indices
from headrace.base.later_column import LaterColumn


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
class PickedColumn(LaterColumn):
    """Some of many values, in any order."""

    __slots__ = ("_places", "_values")

    def __init__(self, values: LongValues, places: Indices) -> None:
        self._values = values
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, rows: slice) -> PickedColumn:
        return PickedColumn(self._values, self._places[rows])

    def made(self) -> list[Any]:
        return self._values.at(self._places)

    def __reduce__(self) -> Any:
        return PickedColumn, (self._values, self._places)
