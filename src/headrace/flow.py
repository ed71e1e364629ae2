"""The running loop on the loader's side: keys go out as numbered tasks, batches come back in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from headrace.base.messages import BadSample, Exhausted, Failed, Finished, Outcome, Skipped, Task
from headrace.dealing import Dealer
from headrace.engines.engine import Engine
from headrace.reorder import ReorderBuffer


class Flow:
    """One epoch of batches, as an iterator that stays usable after an error.

    Guarantees: each task is submitted once and its outcome is told once; at most `engine.capacity` tasks are between
    submission and delivery; keys are drawn no earlier than that allows; with `in_order`, batches leave in the order of
    their keys.

    Args:
        tell_bad: hears of samples that were left out, in the order of their batches; what it raises ends the epoch.
        tell_first: hears of the fingerprints of each worker's first batches.
    """

    def __init__(
        self,
        keys: Iterator[Any],
        engine: Engine,
        *,
        in_order: bool = True,
        tell_bad: Callable[[tuple[BadSample, ...]], None] | None = None,
        tell_first: Callable[[int, int], None] | None = None,
    ) -> None:
        self._keys = keys
        self._engine = engine
        self._capacity = engine.capacity
        self._works_ahead = engine.works_ahead
        self._dealer = Dealer(engine.workers, engine.capacity, wait_for_each=in_order)
        self._reorder: ReorderBuffer[Outcome] | None = ReorderBuffer(engine.capacity) if in_order else None
        self._tell_bad = tell_bad
        self._tell_first = tell_first
        self._lanes: dict[int, int] = {}  # of the tasks in flight
        self._due: deque[Outcome] = deque()
        self._submitted = 0
        self._told = 0
        self._keys_ended = False

    def __iter__(self) -> Flow:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: what the user's code raised for this batch; the next call goes on with the one after it.
            StopIteration: the epoch is over.
        """
        if not self._keys_ended:
            self.submit_tasks()
        while True:
            if not self._due:
                if not self._lanes:
                    raise StopIteration
                self._receive()
                continue
            outcome = self._due.popleft()
            self._told += 1
            match outcome:
                case Finished(batch=batch, bad=bad):
                    self._report(bad)
                    self._work_ahead()
                    return batch
                case Failed():
                    self._work_ahead()
                    try:
                        raise outcome.error
                    finally:
                        del outcome  # the traceback knows this frame; so nothing is kept alive in a circle
                case Skipped(bad=bad):
                    self._report(bad)
                    self.submit_tasks()
                case Exhausted(bad=bad):
                    self._report(bad)
                    self.submit_tasks()

    def submit_tasks(self) -> None:
        """Send out as many tasks as may be in flight."""
        while self._submitted - self._told < self._capacity and not self._keys_ended:
            lane = self._dealer.choose()
            if lane is None:
                self._keys_ended = self._dealer.all_ended
                return
            try:
                keys = next(self._keys)
            except StopIteration:
                self._keys_ended = True
                return
            except Exception as error:  # noqa: BLE001 (a sampler's error is raised when its batch is due)
                self._dealer.take_back(lane)
                self._put(Failed(self._submitted, error))
            else:
                self._submit(Task(self._submitted, keys, lane))
            self._submitted += 1

    def _submit(self, task: Task) -> None:
        try:
            self._engine.submit(task)
        except Exception as error:  # noqa: BLE001 (keys that cannot be sent are no reason to lose the batch that is due)
            self._dealer.take_back(task.lane)
            self._put(Failed(task.number, error))
        else:
            self._lanes[task.number] = task.lane

    def _work_ahead(self) -> None:
        """Keep the workers busy while the loop is at work on the batch that it gets now."""
        if self._works_ahead:
            self.submit_tasks()

    def _receive(self) -> None:
        outcome = self._engine.receive()
        lane = self._lanes.pop(outcome.number)
        self._dealer.take_back(lane)
        if isinstance(outcome, Exhausted):
            self._dealer.retire(lane)
        elif isinstance(outcome, Finished) and outcome.fingerprint is not None and self._tell_first is not None:
            self._tell_first(lane, outcome.fingerprint)
        self._put(outcome)

    def _put(self, outcome: Outcome) -> None:
        if self._reorder is None:
            self._due.append(outcome)
        else:
            self._due.extend(self._reorder.put(outcome.number, outcome))

    def _report(self, bad: tuple[BadSample, ...]) -> None:
        if not bad or self._tell_bad is None:
            return
        try:
            self._tell_bad(bad)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Give up the rest of the epoch, but leave the engine for the next one."""
        self._keys_ended = True
        self._due.clear()
        self._lanes.clear()

    def close(self) -> None:
        """Give up the rest of the epoch, and end the engine."""
        self.abandon()
        self._engine.close()
