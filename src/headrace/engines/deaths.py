"""Counts deaths of workers, to tell whether it is worth going on."""

from __future__ import annotations

from collections import Counter

_MOST_FRUITLESS = 30  # deaths, with no outcome between


class Deaths:
    """The deaths of so many workers, and of those that replaced them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._at: Counter[tuple[int, int, int]] = Counter()  # by epoch, task, position
        self._false_starts = 0
        self._fruitless = 0

    def note_start(self) -> None:
        """A worker has begun to work."""
        self._false_starts = 0

    def note_outcome(self) -> None:
        """A task was done."""
        self._fruitless = 0

    def count(self, *, has_worked: bool) -> None:
        """A worker has died."""
        self._false_starts += not has_worked
        self._fruitless += 1

    @property
    def are_too_many(self) -> bool:
        """Whether workers die again and again, and nothing is done."""
        return self._false_starts > self._workers or self._fruitless > _MOST_FRUITLESS + self._workers

    def count_at(self, epoch: int, task: int, position: int) -> int:
        """How many workers have died at a sample, with this one."""
        self._at[epoch, task, position] += 1
        return self._at[epoch, task, position]
