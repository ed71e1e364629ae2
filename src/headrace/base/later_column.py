"""Columns of a table whose values are made when they are wanted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from headrace.base.indices import Indices

Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray[Any, np.dtype[Any]]]
"""Gives memory for an array."""


class LaterColumn(ABC):
    """Values that are not Python's yet: slices are taken of it, and it can be sent, at no cost for each value."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, rows: slice) -> Any:
        """Some of them, from a first to a last one; perhaps made."""

    @abstractmethod
    def made(self) -> Any:
        """A list of the values, or an array."""

    def placed(self, allocate: Allocate) -> LaterColumn:
        """The same values, in memory that others can see, as far as that is possible."""
        return self

    def pick(self, others: Sequence[Any], places: Indices) -> LaterColumn | None:
        """The values at these places of this column, followed by others; None if they must be made for that."""
        return None


class Columns(ABC):
    """Columns that are sent, to be made where they arrive."""

    @abstractmethod
    def packed(self, pack: Callable[[Any], Any]) -> Any:
        """The same, with what `pack` makes of each column."""


def made(column: Any) -> Any:
    """The values of a column, whichever kind it is."""
    return column.made() if isinstance(column, LaterColumn) else column


def placed(column: Any, allocate: Allocate) -> Any:
    """A column in memory that others can see, if it is one that is made later."""
    return column.placed(allocate) if isinstance(column, LaterColumn) else column
