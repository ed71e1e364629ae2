"""Times the work of one worker: each batch, its collation, and its samples where they come one by one."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import sub
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
_CPU_EVERY = 8  # batches that are told of: to ask for the time of one's own thread takes the system a microsecond
_QUICK = 50  # times what it takes to time one
_SLOW = 4  # times the mean, from which on a batch is told of in any case

Collate = Callable[[Any], Any]
Build = Callable[[int], Builder]


class Stopwatch:
    """Follows the batches of one worker; quick ones, and quick samples, only now and then.

    Args:
        workers: how many there are; so many times more often does the loader hear of a batch.

    Attributes:
        batches: tells which of them are to be watched; for these, `begin` and `end` are called.
    """

    def __init__(self, workers: int = 1) -> None:
        self.batches = Pace(_WATCH_COST_NS)
        self._told = Pace(_TELL_COST_NS)
        self._samples = Pace(_SAMPLE_COST_NS)
        self._workers = workers
        self._n_told = 0
        self._number = self._begun = self._collating = 0
        self._cpu_begun: int | None = None
        self._n_samples = -1
        self._is_running = False
        self._ends: list[int] = []

    def begin(self, number: int) -> None:
        """A batch is begun."""
        self._number = number
        self._is_running = True
        self._collating = 0
        self._n_samples = -1
        self._ends = []
        is_due = not number & self._told.mask
        self._n_told += is_due
        self._cpu_begun = thread_time_ns() if is_due and self._n_told % _CPU_EVERY == 1 else None
        self._begun = perf_counter_ns()

    def end(self) -> Span | None:
        """The batch is made. Returns what is to be told of it."""
        made, self._is_running = perf_counter_ns(), False
        duration = made - self._begun
        is_due = not self._number & self._told.mask
        is_slow = duration > _SLOW * self._workers * self._told.mean_ns
        self.batches.note(duration)
        self._told.note(duration // self._workers)
        if self._n_samples > 0 and self._collating:
            self._samples.note((self._collating - self._begun) // self._n_samples)
        return self._span(made, is_extra=not is_due) if is_due or is_slow else None

    def _span(self, made: int, *, is_extra: bool) -> Span:
        begun, collating, ends = self._begun, self._collating or made, self._ends
        cpu = -1 if self._cpu_begun is None else thread_time_ns() - self._cpu_begun
        if not ends:
            return Span(begun, collating, made, made, cpu, self._n_samples, is_extra)
        durations = [*map(sub, ends, (begun, *ends))]
        slowest_ns = max(durations)
        slowest = durations.index(slowest_ns)
        packed = array("q", ends).tobytes()
        return Span(begun, collating, made, made, cpu, self._n_samples, is_extra, slowest, slowest_ns, packed)

    def watched(self, collate: Collate, *, batched: bool) -> Collate:
        """The same, but it is noted when a batch is collated, and of how many samples."""

        def collate_watched(samples: Any) -> Any:
            if self._is_running and not batched:
                self._begin_collation(1)
                self._ends = [self._collating]
            elif self._is_running:
                self._begin_collation(len(samples) if isinstance(samples, list) else -1)
            return collate(samples)

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
            self._collating, self._ends = 0, []  # a batch that is made again begins here
            return _WatchedSamples(builder, self._ends)

        return build

    @property
    def _has_quick_samples(self) -> bool:
        """Whether timing single ones would be felt even in a few batches."""
        return 0 < self._samples.mean_ns < _QUICK * _SAMPLE_COST_NS

    def _begin_collation(self, n_samples: int) -> None:
        if not self._collating:  # a worker that makes several batches at once fetches before the first
            self._collating = perf_counter_ns()
            self._n_samples = n_samples


class _WatchedRows(RowBuilder):
    __slots__ = ("_stopwatch",)

    def __init__(self, stopwatch: Stopwatch, collator: Collator, size: int) -> None:
        super().__init__(collator, size)
        self._stopwatch = stopwatch

    def finish(self) -> Any:
        if self._stopwatch._is_running:
            self._stopwatch._begin_collation(len(self._samples))
        return super().finish()


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
