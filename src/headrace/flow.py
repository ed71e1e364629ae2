"""The running loop on the loader's side: keys go out as numbered tasks, batches come back in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace.base.messages import BadSample, Exhausted, Failed, Finished, Outcome, Skipped, Task, opened
from headrace.base.progress import Progress
from headrace.dealing import Dealer
from headrace.engines.engine import Engine, Timekeeper
from headrace.reorder import ReorderBuffer

_MANY = 8  # tasks in flight per worker


class Account(Protocol):
    """Keeps account of the batches of an epoch."""

    def plan(self, task: Task) -> None:
        """A batch is asked for."""

    def settle(self, outcome: Outcome) -> None:
        """What became of it is told to the loop now."""

    def end(self) -> None:
        """The loop is told that there is nothing more."""


class Flow:
    """One epoch of batches, as an iterator that stays usable after an error.

    Guarantees: each task is submitted once and its outcome is told once; at most `engine.depth` tasks are between
    submission and delivery; keys are drawn no earlier than that allows; with `in_order`, batches leave in the order of
    their keys.

    Args:
        takes_turns: whether each worker gets every n-th task, as in torch; else whichever is free gets the next.
        progress: is told what is given out; it says where the epoch goes on.
        tell_bad: hears of samples that were left out, in the order of their batches; what it raises ends the epoch.
        tell_first: hears of the fingerprints of each worker's first batches.
        account: hears of every batch.
        timekeeper: hears of those that were timed.

    Attributes:
        latest: the number of the batch that was given last.
    """

    def __init__(
        self,
        keys: Iterator[Any],
        engine: Engine,
        *,
        in_order: bool = True,
        takes_turns: bool = True,
        progress: Progress | None = None,
        tell_bad: Callable[[tuple[BadSample, ...]], None] | None = None,
        tell_first: Callable[[int, int], None] | None = None,
        account: Account | None = None,
        timekeeper: Timekeeper | None = None,
    ) -> None:
        self._keys = keys
        self._engine = engine
        self._works_ahead = engine.works_ahead
        self._progress = progress = Progress(0) if progress is None else progress
        self._dealer = Dealer(
            engine.workers,
            wait_for_each=in_order and takes_turns,
            after=progress.last_lane,
            ended=[number for number, lane in progress.lanes.items() if lane.has_ended],
        )
        self._done = frozenset(progress.ahead)
        self._number = progress.batches  # of the next task
        self._reorder: ReorderBuffer[Outcome] | None = None
        if in_order:
            self._reorder = ReorderBuffer(engine.capacity, progress.batches, self._done)
        self._tell_bad = tell_bad
        self._tell_first = tell_first
        self._account = account
        self._timekeeper = timekeeper
        self.latest = -1
        self._in_flight: dict[int, Task] = {}
        self._lanes_of_streams: dict[int, int] = {}  # of the tasks that have not been told yet
        self._due: deque[Outcome] = deque()
        self._submitted = 0
        self._told = 0
        self._enough = -1  # tasks in flight: at so many, more are sent though nobody waits; -1 where none works ahead
        self._keys_ended = False

    def __iter__(self) -> Flow:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: what the user's code raised for this batch; the next call goes on with the one after it.
            StopIteration: the epoch is over.
        """
        if not self._works_ahead and not self._keys_ended:
            self.submit_tasks()
        while True:
            while not self._due:
                if not self._in_flight:
                    if self._keys_ended:
                        self._end()
                        raise StopIteration
                    self.submit_tasks()
                    continue
                self._receive()
            outcome = opened(self._due[0])  # before it is taken: Ctrl-C may come while it is unpacked
            self._due.popleft()
            self._told += 1
            self._note(outcome)
            match outcome:
                case Finished():
                    if outcome.bad:
                        self._report(outcome.bad)
                    if self._submitted - self._told <= self._enough:
                        self.submit_tasks()
                    if self._account is not None:
                        self._account.settle(outcome)
                    self.latest = outcome.number
                    return outcome.batch
                case Failed():
                    if self._submitted - self._told <= self._enough:
                        self.submit_tasks()
                    if self._account is not None:
                        self._account.settle(outcome)
                    try:
                        raise outcome.error
                    finally:
                        del outcome  # the traceback knows this frame; so nothing is kept alive in a circle
                case Skipped(bad=bad) | Exhausted(bad=bad):
                    if bad:
                        self._report(bad)
                    if self._account is not None:
                        self._account.settle(outcome)
                    self.submit_tasks()

    def submit_tasks(self) -> None:
        """Send out as many tasks as may be in flight.

        Where these are many, a sixteenth of them is sent at a time: so the workers wake less often.
        """
        depth = self._engine.depth
        if self._works_ahead:
            self._enough = depth - (depth // 16 if depth >= _MANY * self._engine.workers else 1)
        try:
            self._submit_tasks(depth)
        finally:
            self._engine.flush()

    def _submit_tasks(self, depth: int) -> None:
        while self._submitted - self._told < depth and not self._keys_ended:
            lane = self._dealer.choose(depth)
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
                self._put(Failed(self._take_number(), error))
            else:
                self._submit(Task(self._take_number(), keys, lane))
            self._submitted += 1

    def _take_number(self) -> int:
        while self._number in self._done:
            self._number += 1
        self._number += 1
        return self._number - 1

    def _submit(self, task: Task) -> None:
        if self._account is not None:
            self._account.plan(task)
        try:
            self._engine.submit(task, more=True)
        except Exception as error:  # noqa: BLE001 (keys that cannot be sent are no reason to lose the batch that is due)
            self._dealer.take_back(task.lane)
            self._put(Failed(task.number, error))
        else:
            self._in_flight[task.number] = task
            if self._progress.follows_lanes:
                self._lanes_of_streams[task.number] = task.lane

    def _receive(self) -> None:
        outcome = self._engine.receive()
        task = self._in_flight.pop(outcome.number)
        self._dealer.take_back(task.lane)
        if type(outcome) is Finished:
            if outcome.fingerprint is not None and self._tell_first is not None:
                self._tell_first(task.lane, outcome.fingerprint)
            if outcome.span is not None and self._timekeeper is not None:
                self._timekeeper.made(task, outcome.span)
        elif isinstance(outcome, Exhausted):
            self._dealer.retire(task.lane)
        self._put(outcome)

    def _put(self, outcome: Outcome) -> None:
        if self._reorder is None:
            self._due.append(outcome)
        else:
            self._due.extend(self._reorder.put(outcome.number, outcome))

    def _note(self, outcome: Outcome) -> None:
        lane = self._lanes_of_streams.pop(outcome.number, None)
        if lane is None:
            self._progress.give(outcome.number)
        elif isinstance(outcome, Exhausted):
            self._progress.end_lane(lane)
        else:
            self._progress.give_from(lane, outcome.state)

    def _report(self, bad: tuple[BadSample, ...]) -> None:
        if self._tell_bad is None:
            return
        try:
            self._tell_bad(bad)
        except BaseException:
            self.abandon()
            raise

    def _end(self) -> None:
        account, self._account = self._account, None  # the loop may ask again
        if account is not None:
            account.end()

    def abandon(self) -> None:
        """Give up the rest of the epoch, but leave the engine for the next one."""
        self._keys_ended = True
        self._account = None
        self._due.clear()
        self._in_flight.clear()

    def close(self) -> None:
        """Give up the rest of the epoch, and end the engine."""
        self.abandon()
        self._engine.close()
