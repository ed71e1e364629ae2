"""Keeps what workers and the training loop report of their times: sums, and the last few thousand spans."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import replace
from heapq import heappush, heapreplace
from itertools import count
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.base.messages import PackedIndices, PlacedKeys, Pull, Span, Task
from headrace.base.pace import Pace
from headrace.insight.totals import Totals
from headrace.insight.weight import bytes_of

_MOST_SPANS = 2048  # batches
_MOST_SAMPLES = 256  # of a batch, whose keys and times are kept
_MOST_KEYS = 32  # where samples were not timed
_MOST_SLOW = 10
_MOST_RUNS = 64  # epochs that are told apart
_TURN_COST_NS = 4000
_WEIGHED_EVERY = 32  # batches


class Work(NamedTuple):
    """What a worker did for one batch, or for one window of a stream.

    Attributes:
        number: of the batch; -1 for a window.
        keys: of its samples, or of the first of many; for a window, a text that says what was done to it.
        n_samples: how many there are.
    """

    epoch: int
    number: int
    worker: int
    span: Span
    keys: Any
    n_samples: int


class Turn(NamedTuple):
    """One turn of the training loop, in nanoseconds: it asks, gets a batch, and works on it.

    Attributes:
        asked: for the batch.
        arrived: it was there.
        given: and pinned, or moved to a device, by the loop's own thread.
        done: the loop came back for the next one.
        is_first: of its epoch.
    """

    epoch: int
    number: int
    asked: int
    arrived: int
    given: int
    done: int
    is_first: bool = False


class Preparation(NamedTuple):
    """A batch was pinned, or moved to a device, in a thread of its own."""

    epoch: int
    number: int
    begun: int
    ended: int


class SlowSample(NamedTuple):
    """One of the slowest samples."""

    ns: int
    epoch: int
    number: int
    position: int
    worker: int
    key: Any


class Processes(Protocol):
    """What runs workers as processes."""

    def pids(self) -> dict[int, int]:
        """Of the workers that run now, by number."""


class Recorder:
    """What is known of the times of a loader, over all its epochs.

    Attributes:
        is_on: whether new epochs are timed.
        restarts: how many workers were replaced.
        work, turns, preparations: the latest, oldest first.
    """

    def __init__(self) -> None:
        self.is_on = True
        self.restarts = 0
        self.work: deque[Work] = deque(maxlen=_MOST_SPANS)
        self.turns: deque[Turn] = deque(maxlen=_MOST_SPANS)
        self.preparations: deque[Preparation] = deque(maxlen=_MOST_SPANS)
        self.latest: Run | None = None
        self._processes: weakref.ref[Processes] | None = None
        self._runs: deque[Run] = deque()
        self._before = Totals()  # what was counted of the runs that are not kept any more
        self._slow: list[tuple[int, int, SlowSample]] = []  # a heap; the second number settles ties
        self._noted = count()

    def begin(self, epoch: int, size: int | None = None) -> Run | None:
        """An epoch begins; None if it is not to be timed.

        Args:
            size: rows in a batch, if workers report rows instead of batches.
        """
        self.latest = Run(self, epoch, size) if self.is_on else None
        if self.latest is not None:
            self._runs.append(self.latest)
            if len(self._runs) > _MOST_RUNS:
                self._before += self._runs.popleft().totals
        return self.latest

    def follow(self, processes: Processes) -> None:
        """The workers of the latest epoch are these processes."""
        self._processes = weakref.ref(processes)

    def pids(self) -> dict[int, int]:
        """The processes of the workers, by their number, as far as they are running."""
        processes = None if self._processes is None else self._processes()
        return {} if processes is None else processes.pids()

    def prepared(self, number: int, begun: int, ended: int) -> None:
        """A batch of the latest epoch was pinned or moved, in a thread of its own."""
        if self.latest is not None:
            self.latest.prepared(number, begun, ended)

    def totals(self, epoch: int | None = None) -> Totals:
        """The sums over all epochs, or over one.

        Raises:
            KeyError: nothing is known of that epoch.
        """
        runs = [run.totals for run in self._runs if epoch in (None, run.epoch)]
        if epoch is not None and not runs:
            raise KeyError(epoch)
        return sum(runs, Totals() if epoch is not None else self._before)

    def slow_samples(self) -> list[SlowSample]:
        """The slowest, at most one of each batch; the slowest first."""
        return [sample for _, _, sample in sorted(self._slow, reverse=True)]

    def note_slow(self, sample: SlowSample) -> None:
        entry = (sample.ns, -next(self._noted), sample)
        if len(self._slow) < _MOST_SLOW:
            heappush(self._slow, entry)
        elif sample.ns > self._slow[0][0]:
            heapreplace(self._slow, entry)

    def __reduce__(self) -> Any:
        return Recorder, ()  # a copy of the loader, in another process or not, has its own times


class Run:
    """One epoch, while it runs: hears of the work from the flow, and of its turns from the loop.

    Attributes:
        batches: that the loop has got; it counts them itself.
        mask: the turns that are timed are those with `batches & mask == 0`.
        open: the turn that is timed now: the number of its batch, and when it was asked for, there, and given.
    """

    def __init__(self, recorder: Recorder, epoch: int, size: int | None) -> None:
        self.epoch = epoch
        self.batches = 0
        self.mask = 0
        self.open: tuple[int, int, int, int] | None = None
        self._recorder = recorder
        self._size = size
        self._totals = Totals(runs=1)
        self._pace = Pace(_TURN_COST_NS)
        self._begun = self._latest = perf_counter_ns()
        self._began_in = 0  # nanoseconds
        self._missing = 0  # rows of the last batch
        self._asked = self._arrived = 0

    @property
    def totals(self) -> Totals:
        """The sums up to now."""
        totals = replace(self._totals, batches=self.batches, elapsed_ns=self._latest - self._begun)
        if self._size is None:
            factor = self.batches / totals.made if totals.made else 1.0
            totals.samples = round(totals.samples * factor)
            return totals.extrapolated(max(factor, 1.0))
        # What comes in windows is counted in rows.
        timed, totals.samples = totals.samples, max(self.batches * self._size - self._missing, 0)
        totals.made = timed / self._size
        totals = totals.extrapolated(max(totals.samples / timed if timed else 1.0, 1.0))
        for worker in totals.workers.values():
            worker.batches = round(worker.samples / self._size)
        return totals

    def ends_short(self, missing: int) -> None:
        """The last batch has fewer rows than the others, by so many."""
        self._missing = missing

    def made(self, task: Task, span: Span, count: int | None = None) -> None:
        """A worker has done a task; `count` says of how many samples, where neither the worker nor the keys do."""
        keys = task.keys if self._size is not None else _keys_in(task.keys, span.n_samples)
        if count is None:
            count = span.n_samples if span.n_samples >= 0 else len(keys)
        if not span.is_extra:
            self._totals.add_work(task.lane, span, count)
        if span.slowest_ns:
            key = keys[span.slowest] if len(keys) == count else None
            slow = SlowSample(span.slowest_ns, self.epoch, task.number, span.slowest, task.lane, key)
            self._recorder.note_slow(slow)
        if len(span.ends) > 8 * _MOST_SAMPLES:
            span = span._replace(ends=b"")
        if self._size is None:
            keys = keys[: _MOST_SAMPLES if span.ends else _MOST_KEYS]
            keys = keys.copy() if isinstance(keys, np.ndarray) else keys  # a view would keep all keys of the epoch
        number = task.number if self._size is None else -1
        self._recorder.work.append(Work(self.epoch, number, task.lane, span, keys, count))

    def prepared(self, number: int, begun: int, ended: int) -> None:
        """A batch was pinned or moved in another thread."""
        self._recorder.preparations.append(Preparation(self.epoch, number, begun, ended))
        self._totals.prepared += 1
        self._totals.prepare_ns += ended - begun

    def ready(self) -> None:
        """The workers were started, and the loop may begin."""
        self._latest = perf_counter_ns()
        self._began_in = self._latest - self._begun

    def ask(self) -> None:
        """The loop asks for a batch."""
        self._asked = self._latest = asked = perf_counter_ns()
        self._arrived = 0
        if self.open is not None:
            self._close(*self.open, asked)
            self.open = None

    def arrive(self) -> None:
        """The batch is there, but not yet where the loop wants it."""
        self._arrived = perf_counter_ns()

    def give(self, number: int, batch: Any) -> None:
        """The loop gets it."""
        self._latest = given = perf_counter_ns()
        totals = self._totals
        if self.batches == 1:
            totals.starts += 1
            totals.start_ns += self._began_in + given - self._asked
        if (self.batches - 1) & self.mask:
            return
        self.open = number, self._asked, self._arrived or given, given
        if not totals.turns % _WEIGHED_EVERY:
            totals.weighed += 1
            totals.weighed_bytes += bytes_of(batch)

    def end(self) -> None:
        """There is no further batch; the loop may ask again."""
        self._latest = perf_counter_ns()
        self._totals.ended = 1

    def _close(self, number: int, asked: int, arrived: int, given: int, done: int) -> None:
        is_first = self.batches == 1
        self._recorder.turns.append(Turn(self.epoch, number, asked, arrived, given, done, is_first))
        if not is_first:  # the first batch is late because the workers start
            self._totals.add_turn(arrived - asked, given - arrived, done - given)
        self._pace.note(done - asked)
        self.mask = self._pace.mask


def _keys_in(keys: Any, n_samples: int) -> Any:
    """The keys of a batch or of a single sample, as a list, a tuple or an array; of a stream there are none."""
    if type(keys) is PlacedKeys:
        keys = keys.keys
    if type(keys) is PackedIndices:
        return keys.array
    if type(keys) is Pull:
        return ()
    if isinstance(keys, list) or (isinstance(keys, tuple) and n_samples != 1):
        return keys
    return (keys,)
