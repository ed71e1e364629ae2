"""Columns of a table whose values are made when they are wanted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class LaterColumn(ABC):
    """Values that are not Python's yet: slices are taken of it, and it can be sent, at no cost for each value."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, rows: slice) -> LaterColumn:
        """Some of them, from a first to a last one."""

    @abstractmethod
    def made(self) -> Any:
        """A list of the values, or an array."""


def made(column: Any) -> Any:
    """The values of a column, whichever kind it is."""
    return column.made() if isinstance(column, LaterColumn) else column
