"""Counts deaths of workers, to tell whether it is worth going on."""

from __future__ import annotations

import time
from collections import Counter

MOST_RESTARTS = 30
"""Deaths in a row that are borne by default, beside one of each worker."""


class Deaths:
    """The deaths of so many workers, and of those that replaced them.

    Args:
        most_restarts: how many workers are replaced without any batch between; None is 30 and one for each worker. Of
            those that die as they start, by default no more than one for each worker.
    """

    def __init__(self, workers: int, most_restarts: int | None = None) -> None:
        self._most_false_starts = workers if most_restarts is None else most_restarts
        self._most_fruitless = MOST_RESTARTS + workers if most_restarts is None else most_restarts
        self._at: Counter[tuple[int, int, int]] = Counter()  # by epoch, task, position
        self._false_starts = 0
        self._fruitless = 0
        self._since = 0.0  # when the first of these died

    def note_start(self) -> None:
        """A worker has begun to work."""
        self._false_starts = 0

    def note_outcome(self) -> None:
        """A task was done."""
        self._fruitless = 0

    def count(self, *, has_worked: bool) -> None:
        """A worker has died."""
        if not self._fruitless:
            self._since = time.monotonic()
        self._false_starts += not has_worked
        self._fruitless += 1

    @property
    def are_too_many(self) -> bool:
        """Whether workers die again and again, and nothing is done."""
        return self._false_starts > self._most_false_starts or self._fruitless > self._most_fruitless

    def describe(self) -> str:
        """How many were too many, in which time, and what to do."""
        seconds = time.monotonic() - self._since
        died = "1 worker" if self._fruitless == 1 else f"{self._fruitless} workers"
        where = ", as they started" if self._false_starts > self._most_false_starts else ""
        return (
            f"Workers die again and again: {died} within {seconds:.1f} s, with no batch in between{where}; so no other "
            "one is started. Pass max_restarts= to set how many are."
        )

    def count_at(self, epoch: int, task: int, position: int) -> int:
        """How many workers have died at a sample, with this one."""
        self._at[epoch, task, position] += 1
        return self._at[epoch, task, position]
