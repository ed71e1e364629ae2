"""Times the work of one worker: each task, its stages, and its samples where they come one by one."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import sub
from struct import Struct
from time import perf_counter_ns, thread_time_ns
from typing import Any

from headrace.base.messages import Span
from headrace.base.pace import Pace
from headrace.batch.collate import Collator
from headrace.batch.fetch import Builder, ListBuilder
from headrace.batch.rows import RowBuilder

_WATCH_COST_NS = 1500
_TELL_COST_NS = 8000  # here, and in the loader that unpacks and keeps it
_SAMPLE_COST_NS = 400
_CPU_EVERY = 8  # tasks that are reported: to ask for the time of one's own thread takes the system a microsecond
_QUICK = 50  # times what it takes to time one
_SLOW = 4  # times the mean, from which on a task is reported in any case

_TIMES = Struct("<5q?2q3I")  # of a span; bytes of the ends of its samples; its stages; bytes of their names
_UNTIMED, _TIMED = b"\0", b"\1"

Collate = Callable[[Any], Any]
Build = Callable[[int], Builder]


class Stopwatch:
    """Follows the tasks of one worker; quick ones, and quick samples, only now and then.

    Args:
        workers: how many there are; the loader hears of tasks that many times more often.
        first: the stage that comes before all others; a task without laps belongs to it.
        times_all: whether tasks are few and long, so that all of them are timed.

    Attributes:
        tasks: says which of them are to be timed; for these, `begin` and `end` are called.
    """

    def __init__(self, workers: int = 1, first: str = "fetch", *, times_all: bool = False) -> None:
        self.tasks = Pace(_WATCH_COST_NS)
        self._told = Pace(_TELL_COST_NS)
        self._samples = Pace(_SAMPLE_COST_NS)
        self._workers = workers
        self._times_all = times_all
        self._first = self._stage = first
        self._stages: dict[str, int] = {}
        self._n_told = 0
        self._number = self._begun = self._lapped = 0
        self._cpu_begun: int | None = None
        self._n_samples = -1
        self._is_running = False
        self._ends: list[int] = []

    def begin(self, number: int) -> None:
        """A task is begun."""
        self._number = number
        self._is_running = True
        self._stages = {}
        self._stage = self._first
        self._n_samples = -1
        self._ends = []
        is_due = not number & self._told.mask
        self._n_told += is_due
        self._cpu_begun = thread_time_ns() if is_due and self._n_told % _CPU_EVERY == 1 else None
        self._begun = self._lapped = perf_counter_ns()

    def lap(self, stage: str) -> None:
        """The time since the last lap, or since the beginning, belongs to `stage`. Costs nothing untimed tasks."""
        if self._is_running:
            now = perf_counter_ns()
            self._stages[stage] = self._stages.get(stage, 0) + now - self._lapped
            self._stage, self._lapped = stage, now

    def end(self) -> Span | None:
        """The task is done; the rest of its time belongs to the latest stage. Returns what is to be reported."""
        self.lap(self._stage)
        made, self._is_running = self._lapped, False
        duration = made - self._begun
        is_due = not self._number & self._told.mask
        is_slow = duration > _SLOW * self._workers * self._told.mean_ns
        if not self._times_all:
            self.tasks.note(duration)
            self._told.note(duration // self._workers)
        if self._n_samples > 0:
            self._samples.note(self._stages.get(self._first, 0) // self._n_samples)
        return self._span(made, is_extra=not is_due) if is_due or is_slow else None

    def _span(self, made: int, *, is_extra: bool) -> Span:
        begun, ends, stages = self._begun, self._ends, tuple(self._stages.items())
        cpu = -1 if self._cpu_begun is None else thread_time_ns() - self._cpu_begun
        if not ends:
            return Span(begun, made, made, cpu, stages, self._n_samples, is_extra)
        durations = [*map(sub, ends, (begun, *ends))]
        slowest_ns = max(durations)
        slowest = durations.index(slowest_ns)
        packed = array("q", ends).tobytes()
        return Span(begun, made, made, cpu, stages, self._n_samples, is_extra, slowest, slowest_ns, packed)

    def watched(self, collate: Collate, *, batched: bool) -> Collate:
        """The same, but it is noted how long it takes to collate a batch, and of how many samples."""

        def collate_watched(samples: Any) -> Any:
            if not self._is_running:
                return collate(samples)
            if batched:
                self._begin_collation(len(samples) if isinstance(samples, list) else -1)
            else:
                self._begin_collation(1)
                self._ends = [self._lapped]
            batch = collate(samples)
            self.lap("collate")
            return batch

        return collate_watched

    def builder(self, collator: Collator | None, collate: Collate) -> Build:
        """What makes the builders of batches: of rows for a collator, else of lists.

        Args:
            collate: one that is watched.
        """

        def build(size: int) -> Builder:
            if not self._is_running:
                return ListBuilder(collate) if collator is None else RowBuilder(collator, size)
            builder = ListBuilder(collate) if collator is None else _WatchedRows(self, collator, size)
            if self._number & self._samples.mask or self._has_quick_samples:
                return builder
            self._n_samples, self._ends = -1, []  # a batch that is made again begins here
            return _WatchedSamples(builder, self._ends)

        return build

    @property
    def _has_quick_samples(self) -> bool:
        """Whether timing single ones would be felt even in a few batches."""
        return 0 < self._samples.mean_ns < _QUICK * _SAMPLE_COST_NS

    def _begin_collation(self, n_samples: int) -> None:
        self.lap(self._first)
        if self._n_samples < 0:
            self._n_samples = n_samples


class _WatchedRows(RowBuilder):
    __slots__ = ("_stopwatch",)

    def __init__(self, stopwatch: Stopwatch, collator: Collator, size: int) -> None:
        super().__init__(collator, size)
        self._stopwatch = stopwatch

    def finish(self) -> Any:
        if self._stopwatch._is_running:
            self._stopwatch._begin_collation(len(self._samples))
        batch = super().finish()
        self._stopwatch.lap("collate")
        return batch


class _WatchedSamples:
    """A builder that notes when samples arrive."""

    only_keeps = False

    def __init__(self, builder: Builder, ends: list[int]) -> None:
        self._builder = builder
        self._ends = ends
        self.finish = builder.finish

    def add(self, sample: Any) -> None:
        self._builder.add(sample)
        self._ends.append(perf_counter_ns())

    def extend(self, samples: list[Any]) -> None:
        self._builder.extend(samples)
        self._ends.append(perf_counter_ns())


def pack_trailer(span: Span | None, sent: int = 0) -> bytes:
    """The last bytes of every message from a worker process: when what is in it was made.

    Args:
        sent: when it was ready to be sent.
    """
    if span is None:
        return _UNTIMED
    begun, made, _, cpu, stages, n_samples, is_extra, slowest, slowest_ns, ends = span
    names, times = zip(*stages, strict=True)
    laps, named = array("q", times).tobytes(), ",".join(names).encode()
    sizes = len(ends), len(names), len(named)
    fixed = _TIMES.pack(begun, made, sent, cpu, n_samples, is_extra, slowest, slowest_ns, *sizes)
    return b"".join((ends, laps, named, fixed, _TIMED))


def cut_trailer(message: memoryview) -> tuple[memoryview, Span | None]:
    """The message without its trailer, and when its batch was made."""
    if not message[-1]:
        return message[:-1], None
    end = len(message) - 1 - _TIMES.size
    begun, made, sent, cpu, *rest, n_ends, n_stages, n_named = _TIMES.unpack_from(message, end)
    named = end - n_named
    laps = named - 8 * n_stages
    start = laps - n_ends
    names, times = bytes(message[named:end]).decode().split(","), array("q", bytes(message[laps:named]))
    stages = tuple(zip(names, times, strict=True))
    return message[:start], Span._make((begun, made, sent, cpu, stages, *rest, bytes(message[start:laps])))
