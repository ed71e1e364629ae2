"""Which worker gets the next task."""

from __future__ import annotations

from collections.abc import Iterable


class RoundRobin:
    """Chooses the worker of each task: round and round, leaving out the workers that have ended.

    Guarantees: the k-th task of every worker that is still there comes before the (k+1)-th of any other, so the order
    of the batches of streams does not depend on when a worker is found to have ended.

    Args:
        workers: how many there are.
        wait_for_each: whether a worker gets its turn even if it is slow. If not, a worker that has its share of the
            tasks in flight is passed over, and holds up only those.
        after: the worker that had the last turn, where an epoch goes on; `ended` the workers that have ended.
    """

    def __init__(
        self, workers: int, *, wait_for_each: bool, after: int | None = None, ended: Iterable[int] = ()
    ) -> None:
        self._workers = workers
        self._active = dict.fromkeys(range(workers), 0)  # how many tasks each has in flight
        self._wait_for_each = wait_for_each
        self._last = workers - 1 if after is None else after
        for worker in ended:
            self.retire(worker)

    def choose(self, depth: int) -> int | None:
        """The worker for the next task, which now counts as in flight; None if all have ended, or all are busy.

        Args:
            depth: how many tasks are to be in flight.
        """
        if self._workers == 1:  # as without workers: this is asked for every batch
            if 0 not in self._active or not (self._wait_for_each or self._active[0] < depth):
                return None
            self._active[0] += 1
            return 0
        worker = self._last
        for _ in range(self._workers):
            worker = (worker + 1) % self._workers
            if worker in self._active and (self._wait_for_each or self._active[worker] < depth // len(self._active)):
                self._active[worker] += 1
                self._last = worker
                return worker
        return None

    def idlest(self) -> int:
        """The worker that has least to do."""
        return min(self._active, key=self._active.__getitem__) if self._workers > 1 else 0

    def add(self, worker: int) -> None:
        """A task that is meant for this worker is in flight."""
        if worker in self._active:
            self._active[worker] += 1

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
