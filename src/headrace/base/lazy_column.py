"""Columns of a table whose values become Python objects when they are needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from headrace.base.indices import Indices

Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray[Any, np.dtype[Any]]]
"""Allocates memory for an array."""


class LazyColumn(ABC):
    """Values that are not Python objects yet: slicing and sending it costs nothing per value."""

    __slots__ = ()
    is_fresh = False
    """Whether nobody else sees the array that `materialize` makes."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, rows: slice) -> Any:
        """A part of the column; its values may be materialized."""

    @abstractmethod
    def materialize(self) -> Any:
        """The values as a list or an array."""

    def objects(self, rows: slice) -> Sequence[Any]:
        """Some of the values, each as it is in a row."""
        values: Sequence[Any] = materialize(self[rows])
        return values

    def part(self, rows: slice) -> Any:
        """A part of the column, to be sent: its values are not materialized."""
        return self[rows]

    def placed(self, allocate: Allocate) -> Any:
        """The same values, in memory that other processes see where possible."""
        return self

    def pick(self, others: Sequence[Any], places: Indices) -> LazyColumn | None:
        """The values at these places of this column and `others` joined; None if that needs them materialized."""
        return None


class Columns(ABC):
    """Columns that are sent, and materialized where they arrive."""

    @abstractmethod
    def packed(self, pack: Callable[[Any], Any]) -> Any:
        """The same columns, each packed by `pack`."""


def materialize(column: Any) -> Any:
    """The values of a column, whichever kind it is."""
    return column.materialize() if isinstance(column, LazyColumn) else column


def placed(column: Any, allocate: Allocate) -> Any:
    """A column in memory that other processes see, if it is lazy."""
    return column.placed(allocate) if isinstance(column, LazyColumn) else column
