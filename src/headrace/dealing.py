"""Deals the tasks of an epoch to workers, one after the other."""

from __future__ import annotations


class Dealer:
    """Chooses the worker of each task: round and round, leaving out the workers that have ended.

    Guarantees: the k-th task of every worker that is still there comes before the (k+1)-th of any other, so the order
    of the batches of streams does not depend on when a worker is found to have ended.

    Args:
        workers: how many there are.
        capacity: how many tasks may be in flight.
        wait_for_each: whether a worker gets its turn even if it is slow. If not, a worker that has its share of the
            tasks in flight is passed over, and holds up only those.
    """

    def __init__(self, workers: int, capacity: int, *, wait_for_each: bool) -> None:
        self._workers = workers
        self._active = dict.fromkeys(range(workers), 0)  # how many tasks each has in flight
        self._capacity = capacity
        self._wait_for_each = wait_for_each
        self._last = workers - 1

    def choose(self) -> int | None:
        """The worker for the next task, which now counts as in flight; None if all have ended, or all are busy."""
        worker = self._last
        for _ in range(self._workers):
            worker = (worker + 1) % self._workers
            if worker in self._active and (self._wait_for_each or self._active[worker] < self._share):
                self._active[worker] += 1
                self._last = worker
                return worker
        return None

    @property
    def _share(self) -> int:
        return self._capacity // len(self._active)

    def take_back(self, worker: int) -> None:
        """A task of this worker is no longer in flight."""
        if worker in self._active:
            self._active[worker] -= 1

    def retire(self, worker: int) -> None:
        """Give this worker nothing more."""
        self._active.pop(worker, None)

    @property
    def all_ended(self) -> bool:
        return not self._active
