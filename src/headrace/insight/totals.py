"""Sums of times and counts, that can be added up over epochs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from headrace.base.messages import Span


@dataclass
class WorkerTotals:
    """What one worker has done, in nanoseconds.

    Attributes:
        cpu_ns: that it computed, of `cpu_of_ns` in which that was measured.
    """

    batches: int = 0
    samples: int = 0
    fetch_ns: int = 0
    collate_ns: int = 0
    pack_ns: int = 0
    cpu_ns: int = 0
    cpu_of_ns: int = 0

    @property
    def busy_ns(self) -> int:
        return self.fetch_ns + self.collate_ns + self.pack_ns

    def times(self, factor: float) -> WorkerTotals:
        return WorkerTotals(**{field.name: round(getattr(self, field.name) * factor) for field in fields(self)})

    def __add__(self, other: WorkerTotals) -> WorkerTotals:
        return WorkerTotals(**_sums(self, other))


@dataclass
class Totals:
    """What was done in an epoch, or in several.

    Attributes:
        runs: epochs that were begun, and `ended` those that came to their end.
        starts: those whose first batch came, and `start_ns` how long that took.
        batches: that the loop got, and `samples` how many are in them.
        elapsed_ns: from the beginning of an epoch to its end, or until now.
        turns: of the loop, that were timed, without the first of each epoch.
        wait_ns: that the loop waited in them, `pin_ns` that it pinned or moved the batch, `step_ns` that it worked.
        made: batches that workers made, as far as they were timed.
        prepared: batches that were pinned or moved in a thread of its own, in `prepare_ns`.
        weighed: batches that were found to have `weighed_bytes` together.
    """

    runs: int = 0
    ended: int = 0
    starts: int = 0
    start_ns: int = 0
    batches: int = 0
    samples: int = 0
    elapsed_ns: int = 0
    turns: int = 0
    wait_ns: int = 0
    pin_ns: int = 0
    step_ns: int = 0
    made: float = 0
    prepared: int = 0
    prepare_ns: int = 0
    weighed: int = 0
    weighed_bytes: int = 0
    workers: dict[int, WorkerTotals] = field(default_factory=dict)

    def add_work(self, worker: int, span: Span, count: int) -> None:
        """A worker has done a task."""
        self.made += 1
        self.samples += count
        own = self.workers.get(worker)
        if own is None:
            own = self.workers[worker] = WorkerTotals()
        own.batches += 1
        own.samples += count
        begun, collating, made, packed, cpu = span[:5]
        own.fetch_ns += collating - begun
        own.collate_ns += made - collating
        own.pack_ns += packed - made
        if cpu >= 0:
            own.cpu_ns += cpu
            own.cpu_of_ns += made - begun

    def add_turn(self, wait_ns: int, pin_ns: int, step_ns: int) -> None:
        """The loop has made a turn."""
        self.turns += 1
        self.wait_ns += wait_ns
        self.pin_ns += pin_ns
        self.step_ns += step_ns

    def extrapolated(self, factor: float) -> Totals:
        """The same as if all had been timed, which is so many times what was."""
        workers = {number: worker.times(factor) for number, worker in self.workers.items()}
        return replace(self, made=self.made * factor, workers=workers)

    @property
    def all_workers(self) -> WorkerTotals:
        return sum(self.workers.values(), WorkerTotals())

    def __add__(self, other: Totals) -> Totals:
        workers = {
            number: self.workers.get(number, WorkerTotals()) + other.workers.get(number, WorkerTotals())
            for number in sorted({*self.workers, *other.workers})
        }
        return Totals(**_sums(self, other), workers=workers)


def _sums(a: Any, b: Any) -> dict[str, Any]:
    numbers = [field.name for field in fields(a) if field.name != "workers"]
    return {name: getattr(a, name) + getattr(b, name) for name in numbers}
