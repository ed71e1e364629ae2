"""Keeps what workers and the training loop report of their times: sums, and the latest few thousand spans."""

from __future__ import annotations

import sys
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from itertools import count
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.base.messages import PackedIndices, PlacedKeys, Pull, Span, Task
from headrace.base.node_notes import NodeNotes
from headrace.base.pace import Pace
from headrace.base.plan import Plan
from headrace.insight.watching import EVERY_NS, tell

_MOST_SPANS = 2048  # tasks, and turns of the loop
_MOST_SAMPLES = 256  # of a batch, whose keys and times are kept
_MOST_KEYS = 32  # where samples were not timed
_MOST_SLOW = 10
_MOST_RUNS = 64  # epochs that are kept apart
_MOST_REPLACED = 1024
_TURN_COST_NS = 4000
_WEIGHED_EVERY = 32  # batches
_DEEPEST = 8  # containers within containers that are weighed
_MANY = 16  # elements of a list


class Work(NamedTuple):
    """What a worker did for one task.

    Attributes:
        number: of the batch; -1 if the task is something else than one batch.
        keys: of its samples, or of the first of many; or a text that says what was done.
        n_samples: how many samples the task made.
    """

    epoch: int
    number: int
    worker: int
    span: Span
    keys: Any
    n_samples: int

    def stages(self) -> Iterator[tuple[str, int, int]]:
        """The stages one after the other: name, begin and end. What was done by turns is drawn as if it was not."""
        at = self.span.begun
        for name, ns in self.span.stages:
            yield name, at, at + ns
            at += ns
        yield "send", self.span.made, self.span.sent

    def samples(self) -> list[tuple[int | str | None, int]]:
        """The samples that were timed: the key, if it is known, and when the sample was there."""
        ends = array("q", self.span.ends)
        keys = () if isinstance(self.keys, str) else self.keys
        if len(keys) != len(ends):
            return [(None, end) for end in ends]
        return [(plain_key(key), end) for key, end in zip(keys, ends, strict=True)]


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


class Replacement(NamedTuple):
    """A worker was replaced by another one of the same number."""

    worker: int
    at: int


class SlowSample(NamedTuple):
    """One of the slowest samples."""

    ns: int
    epoch: int
    number: int
    position: int
    worker: int
    key: Any


@dataclass
class WorkerTotals:
    """What one worker has done, in nanoseconds.

    Attributes:
        batches: its share of those that the loop got.
        samples: that it made.
        stages: the time of each, by name.
        cpu_ns: that it computed, of `cpu_of_ns` in which that was measured.
    """

    batches: int = 0
    tasks: int = 0
    samples: int = 0
    stages: dict[str, int] = field(default_factory=dict)
    cpu_ns: int = 0
    cpu_of_ns: int = 0

    @property
    def busy_ns(self) -> int:
        return sum(self.stages.values())

    def add(self, span: Span, n_samples: int) -> None:
        """It has done a task."""
        self.tasks += 1
        self.samples += n_samples
        stages = self.stages
        for name, ns in (*span.stages, ("send", span.sent - span.made)):
            stages[name] = stages.get(name, 0) + ns
        if span.cpu >= 0:
            self.cpu_ns += span.cpu
            self.cpu_of_ns += span.made - span.begun

    def times(self, factor: float) -> WorkerTotals:
        return WorkerTotals(
            tasks=round(self.tasks * factor),
            samples=round(self.samples * factor),
            stages={name: round(ns * factor) for name, ns in self.stages.items()},
            cpu_ns=self.cpu_ns,
            cpu_of_ns=self.cpu_of_ns,
        )

    def merge(self, other: WorkerTotals) -> None:
        """Add what another one has done, or the same in another epoch."""
        for name, ns in other.stages.items():
            self.stages[name] = self.stages.get(name, 0) + ns
        _add_numbers(self, other)


@dataclass
class Totals:
    """What was done in an epoch, or in several.

    Attributes:
        runs: epochs that were begun, and `ended` those that came to their end.
        starts: those whose first batch came; `start_ns` how long that took, and `starting_ns` until work on it began.
        stopping_ns: from the end of epochs until what was started for them had ended.
        batches: that the loop got, and `samples` how many are in them.
        elapsed_ns: from the beginning of an epoch to its end, or until now; `waited_ns` of these the loop waited.
        turns: of the loop that were timed, without the first of each epoch.
        wait_ns: that the loop waited in them, and `pin_ns` that it pinned or moved the batch.
        steps: of the loop that were timed, and took `step_ns`.
        made: batches that the times of the workers are about.
        prepared: batches that were pinned or moved in a thread of its own, in `prepare_ns`.
        weighed: batches that were found to have `weighed_bytes` together.
    """

    runs: int = 0
    ended: int = 0
    starts: int = 0
    start_ns: int = 0
    starting_ns: int = 0
    stopping_ns: int = 0
    batches: int = 0
    samples: int = 0
    elapsed_ns: int = 0
    waited_ns: float = 0
    turns: int = 0
    wait_ns: int = 0
    pin_ns: int = 0
    steps: int = 0
    step_ns: int = 0
    made: float = 0
    prepared: int = 0
    prepare_ns: int = 0
    weighed: int = 0
    weighed_bytes: int = 0
    workers: dict[int, WorkerTotals] = field(default_factory=dict)

    @property
    def all_workers(self) -> WorkerTotals:
        together = WorkerTotals()
        for worker in self.workers.values():
            together.merge(worker)
        return together

    def merge(self, other: Totals) -> None:
        """Add what was done in another epoch."""
        for number, worker in other.workers.items():
            self.workers.setdefault(number, WorkerTotals()).merge(worker)
        _add_numbers(self, other)


def _add_numbers(totals: Any, others: Any) -> None:
    mine = vars(totals)  # every short epoch is added up: `dataclasses.fields` takes as long as all the rest of it
    for name, number in vars(others).items():
        if name not in ("workers", "stages"):
            mine[name] += number


class Processes(Protocol):
    """What runs workers as processes."""

    def pids(self) -> dict[int, int]:
        """Of the workers that run now, by number."""


class Recorder:
    """What is known of the times of a loader, over all its epochs.

    Attributes:
        is_on: whether new epochs are timed.
        restarts: how many workers were replaced, and `replacements` when, the latest of them.
        runs: the latest epochs, oldest first.
        nodes: what is noted of the nodes that workers run on, where there may be several.
        work, turns, preparations: the latest, oldest first.
        owner: the loader, as long as it is there.
        number: of the loader in this process; -1 before its first epoch.
        logged, told: the sums when figures were asked for last, by the program and by whoever watches.
    """

    def __init__(self) -> None:
        self.is_on = True
        self.restarts = 0
        self.replacements: deque[Replacement] = deque(maxlen=_MOST_REPLACED)
        self.runs: deque[Run] = deque()
        self.work: deque[Work] = deque(maxlen=_MOST_SPANS)
        self.turns: deque[Turn] = deque(maxlen=_MOST_SPANS)
        self.preparations: deque[Preparation] = deque(maxlen=_MOST_SPANS)
        self.latest: Run | None = None
        self._processes: weakref.ref[Processes] | None = None
        self.nodes: NodeNotes | None = None
        self._before = Totals()  # what was counted of the runs that are not kept any more
        self._slow: list[tuple[int, int, SlowSample]] = []  # a heap; the second number settles ties
        self._noted = count()
        self.owner: weakref.ref[Any] | None = None
        self.number = -1
        self.logged = self.told = Totals()
        self.looked_at = 0  # when it was last asked whether somebody watches

    def setup(self) -> Any:
        """How the loader is set up; None if it is gone."""
        owner = None if self.owner is None else self.owner()
        return None if owner is None else owner._setup()

    def begin(self, epoch: int) -> Run | None:
        """An epoch begins, before its workers start; None if it is not to be timed."""
        self.latest = Run(self, epoch) if self.is_on else None
        if self.latest is not None:
            if self.number < 0 or "opentelemetry.metrics" in sys.modules:
                from headrace.insight.live import note_begin

                note_begin(self)
            self.runs.append(self.latest)
            if len(self.runs) > _MOST_RUNS:
                self._before.merge(self.runs.popleft().totals)
        return self.latest

    def follow(self, processes: Processes) -> None:
        """The workers of the latest epoch are these processes."""
        self._processes = weakref.ref(processes)
        self.nodes = getattr(processes, "nodes", None)

    def replaced(self, worker: int) -> None:
        """A worker is replaced now."""
        self.restarts += 1
        self.replacements.append(Replacement(worker, perf_counter_ns()))

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
        runs = [run.totals for run in self.runs if epoch in (None, run.epoch)]
        if epoch is not None and not runs:
            raise KeyError(epoch)
        together = Totals()
        for totals in [self._before, *runs] if epoch is None else runs:
            together.merge(totals)
        together.workers = dict(sorted(together.workers.items()))
        return together

    def peek(self) -> Totals:
        """The sums over all epochs, for another thread than the loop's: batches taken just now may be missing.

        Raises:
            RuntimeError: they change at this moment; ask again.
        """
        together = Totals()
        for totals in [self._before, *(run.peek() for run in list(self.runs))]:
            together.merge(totals)
        return together

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


def _no_plan() -> None:
    """The epoch has none yet."""


class Run:
    """One epoch, while it runs: hears of the work from the flow, and of its turns from the loop.

    Attributes:
        batches: that the loop got; the iterator counts them.
        samples: in these batches; the flow counts them.
        n_tasks: that came back from workers; the flow counts them, too.
        mask: the turns that are timed are those with `batches & mask == 0`.
        open: the turn that is timed now: the number of its batch, and when it was asked for, there, and given.
        begun: when the epoch was, and `is_ready` when the loop could ask for the first batch.
        first_asked: when it did; 0 if it has not.
        last_wait: from when to when the loop waited to hear that there is no further batch.
    """

    def __init__(self, recorder: Recorder, epoch: int) -> None:
        self.epoch = epoch
        self.batches = self.samples = self.n_tasks = 0
        self.mask = 0
        self.open: tuple[int, int, int, int] | None = None
        self.begun = self.is_ready = self._latest = perf_counter_ns()
        self.first_asked = 0
        self.last_wait: tuple[int, int] | None = None
        self._recorder = recorder
        self._totals = Totals(runs=1)
        self._pace = Pace(_TURN_COST_NS)
        self._asked = self._arrived = self._stopped = 0
        self._first_work = 0  # when a worker began with it
        self._makes_batches = False  # each task makes one
        self.plan: Callable[[], Plan | None] = _no_plan

    def count(self, n_batches: int, n_samples: int) -> None:
        """The loop has received some samples, in batches that were counted before, and in `n_batches` more."""
        self.batches += n_batches
        self.samples += n_samples

    @property
    def totals(self) -> Totals:
        """The sums up to now."""
        plan = self.plan()
        if plan is not None:
            plan.catch_up()  # so that all samples are counted
        return self.peek()

    def peek(self) -> Totals:
        """The same, without touching what the loop works on."""
        before_loop = max(self.first_asked - self.is_ready, 0)  # it had something else to do
        totals = Totals(**vars(self._totals))  # `replace` takes three times as long, in every short epoch
        totals.batches, totals.samples = self.batches, self.samples
        totals.elapsed_ns = self._latest - self.begun - before_loop
        totals.workers = self._workers()
        if totals.starts and self._first_work:
            totals.starting_ns = min(max(self._first_work - self.begun, 0), totals.start_ns)
        totals.waited_ns = self._waited_ns(totals)
        totals.made = self._made(totals.workers)
        return totals

    def _waited_ns(self, totals: Totals) -> float:
        """What the loop waited: exactly for the first batch and for the end; in between, as in the turns timed."""
        if not totals.starts:
            return totals.elapsed_ns
        begun, ended = self.last_wait or (0, 0)
        known = totals.start_ns + ended - begun
        late = totals.wait_ns + totals.pin_ns
        share = late / (late + totals.step_ns) if late else 0.0
        return known + share * max(totals.elapsed_ns - known, 0)

    def _workers(self) -> dict[int, WorkerTotals]:
        """What each worker has done, as if all of it had been timed."""
        timed = self._totals.workers
        n_tasks, n_samples = (sum(getattr(worker, name) for worker in timed.values()) for name in ("tasks", "samples"))
        is_sampled, by_samples = self.n_tasks > n_tasks, not self._makes_batches and n_samples > 0
        factor = self.n_tasks / n_tasks if is_sampled and n_tasks else 1.0
        workers = {number: worker.times(factor) for number, worker in timed.items()}
        weights = {number: worker.samples if by_samples else worker.tasks for number, worker in timed.items()}
        for number, batches in _dealt(self.batches, weights).items():
            workers[number].batches = batches
        if is_sampled and by_samples:
            for number, samples in _dealt(self.samples, weights).items():
                workers[number].samples = samples
        return workers

    def _made(self, workers: Mapping[int, WorkerTotals]) -> float:
        """The batches that the workers have made, or begun; some of them are still on their way to the loop."""
        if self._makes_batches:
            return sum(worker.tasks for worker in workers.values())
        n_samples = sum(worker.samples for worker in workers.values())
        return self.batches * max(n_samples / self.samples if self.samples else 1.0, 1.0)

    def made(self, task: Task, span: Span, keys: Any = None, n_samples: int | None = None) -> None:
        """A worker has done a task, and timed it.

        Args:
            keys: of the samples, if not those of the task; or a text that says what was done, if that was not one
                batch.
            n_samples: how many samples it made; if None, as many as the worker says, or as there are keys. Where
                several tasks make the same samples, only one of them counts them.
        """
        is_text = isinstance(keys, str)
        if not is_text:
            keys = _keys_in(task.keys if keys is None else keys, span.n_samples)
            self._makes_batches = True
        if n_samples is None:
            n_samples = span.n_samples if span.n_samples >= 0 else len(keys)
        if not self._first_work or span.begun < self._first_work:
            self._first_work = span.begun
        if not span.is_extra:
            workers = self._totals.workers
            if task.worker not in workers:
                workers[task.worker] = WorkerTotals()
            workers[task.worker].add(span, n_samples)
        number = -1 if is_text else task.number
        if span.slowest_ns:
            key = keys[span.slowest] if not is_text and len(keys) == n_samples else None
            slow = SlowSample(span.slowest_ns, self.epoch, number, span.slowest, task.worker, key)
            self._recorder.note_slow(slow)
        if len(span.ends) > 8 * _MOST_SAMPLES:
            span = span._replace(ends=b"")
        if not is_text:
            keys = keys[: _MOST_SAMPLES if span.ends else _MOST_KEYS]
            keys = keys.copy() if isinstance(keys, np.ndarray) else keys  # a view would keep all keys of the epoch
        self._recorder.work.append(Work(self.epoch, number, task.worker, span, keys, n_samples))

    def prepared(self, number: int, begun: int, ended: int) -> None:
        """A batch was pinned or moved in another thread."""
        self._recorder.preparations.append(Preparation(self.epoch, number, begun, ended))
        self._totals.prepared += 1
        self._totals.prepare_ns += ended - begun

    def ready(self) -> None:
        """The workers were started, and the loop may begin."""
        self._latest = self.is_ready = perf_counter_ns()

    def ask(self) -> None:
        """The loop asks for a batch."""
        if self.last_wait is not None:
            return
        self._asked = self._latest = asked = perf_counter_ns()
        self._arrived = 0
        if self.open is not None:
            self._close(*self.open, asked)
            self.open = None
        elif not self.first_asked:
            self.first_asked = asked

    def arrive(self) -> None:
        """The batch is there, but not yet where the loop wants it."""
        self._arrived = perf_counter_ns()

    def give(self, number: int, batch: Any) -> None:
        """The loop gets it."""
        self._latest = given = perf_counter_ns()
        asked, self._asked = self._asked, 0
        totals = self._totals
        if self.batches == 1:
            totals.starts = 1
            totals.start_ns = self.is_ready - self.begun + given - self.first_asked
        if given - self._recorder.looked_at > EVERY_NS:
            self._recorder.looked_at = given
            tell(self._recorder)
        if (self.batches - 1) & self.mask:
            return
        self.open = number, asked, self._arrived or given, given
        if not totals.turns % _WEIGHED_EVERY:
            totals.weighed += 1
            totals.weighed_bytes += bytes_of(batch)

    def stop(self) -> None:
        """There is no further batch; what was started for the epoch is about to end."""
        if not self._stopped:
            self._stopped = perf_counter_ns()

    def end(self) -> None:
        """It has ended; the loop may ask again."""
        if self._totals.ended:
            return
        self._totals.ended = 1
        self._latest = ended = perf_counter_ns()
        self._totals.stopping_ns = ended - (self._stopped or ended)
        self.last_wait = (self._asked or ended), ended

    def _close(self, number: int, asked: int, arrived: int, given: int, done: int) -> None:
        is_first, totals = self.batches == 1, self._totals
        self._recorder.turns.append(Turn(self.epoch, number, asked, arrived, given, done, is_first))
        totals.steps += 1
        totals.step_ns += done - given
        if not is_first:  # the wait for which is counted as a whole, with what was before it
            totals.turns += 1
            totals.wait_ns += arrived - asked
            totals.pin_ns += given - arrived
        self._pace.note(done - asked)
        self.mask = self._pace.mask


def _dealt(n: int, weights: Mapping[int, float]) -> dict[int, int]:
    """`n` in whole shares, as near to the weights as that is possible."""
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 0)
    shares = {key: int(n * weight / total + 1e-9) for key, weight in weights.items()}
    rests = sorted(weights, key=lambda key: shares[key] - n * weights[key] / total)
    for key in rests[: n - sum(shares.values())]:
        shares[key] += 1
    return shares


def _keys_in(keys: Any, n_samples: int) -> Any:
    """The keys of a batch or of a single sample, as a list, tuple or array; a user's iterable has none."""
    if type(keys) is PlacedKeys:
        keys = keys.keys
    if type(keys) is PackedIndices:
        return keys.array
    if type(keys) is Pull:
        return ()
    if isinstance(keys, (list, np.ndarray)) or (isinstance(keys, tuple) and n_samples != 1):
        return keys
    return (keys,)


def plain_key(key: Any) -> int | str | None:
    """A key of a sample as JSON knows it."""
    if key is None:
        return None
    try:
        return int(key.__index__())
    except Exception:  # noqa: BLE001 (no integer, whatever it is)
        return key if isinstance(key, str) else repr(key)


def bytes_of(batch: Any) -> int:
    """The bytes of all arrays, strings and bytes in a batch, wherever in its containers; others count as nothing.

    Of a long list, some elements are looked at, and the others taken to be alike.
    """
    try:
        return _bytes_of(batch, _DEEPEST)
    except Exception:  # noqa: BLE001 (a user's own container may refuse to be looked at)
        return 0


def _bytes_of(batch: Any, depth: int) -> int:
    if isinstance(batch, (str, bytes, bytearray)):
        return len(batch)
    n_bytes = getattr(batch, "nbytes", None)
    if isinstance(n_bytes, int):
        return n_bytes
    if not depth:
        return 0
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, (list, tuple)):
        return 0
    elif len(batch) > _MANY:  # as much as some of them, for all: looking at each would take longer than to load them
        some = batch[:: len(batch) // _MANY]
        return sum(_bytes_of(field, depth - 1) for field in some) * len(batch) // len(some)
    return sum(_bytes_of(field, depth - 1) for field in batch)
