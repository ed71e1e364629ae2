"""Puts results that finish out of order back into the order they were asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from headrace.base.errors import InternalError

T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Holds early results until every earlier one has been released.

    Guarantees: each position leaves once, in ascending order; at most `capacity` results are held.

    Args:
        absent: positions that will not come, and are not waited for.
    """

    def __init__(self, capacity: int, first: int = 0, absent: Collection[int] = ()) -> None:
        self._absent = frozenset(absent)
        self._capacity = capacity + len(self._absent)
        self._next = first
        self._early: dict[int, T] = {}
        while self._next in self._absent:
            self._next += 1

    def put(self, position: int, result: T) -> list[T]:
        """Accept one result and return all that are now due.

        Raises:
            InternalError: `position` came before, or lies outside the window.
        """
        end = self._next + self._capacity
        if not self._next <= position < end or position in self._early:
            raise InternalError(f"Position must be new and lie in [{self._next}, {end}), got {position}.")
        if position != self._next:
            self._early[position] = result
            return []
        due = [result]
        self._next += 1
        while self._next in self._early or self._next in self._absent:
            if self._next in self._early:
                due.append(self._early.pop(self._next))
            self._next += 1
        return due

    def __len__(self) -> int:
        """How many results wait for an earlier one."""
        return len(self._early)
