"""How fast loaders with workers run, once they run: rates over a steady stretch, by the wall clock.

The start of the workers and the first batches are not counted; what they cost is the question of `start_up.py`. The
loaders go on beyond the stretch, so as many batches lie ready at its end as at its start.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils import data as torch_data

import headrace
from benchmarks.report import Settings
from benchmarks.timing import Run, median_ratio, spread

ENDLESS = 2**30
"""The length of datasets that make their samples anew."""
NOT_SLOWER = 0.97
"""Ratios from here on count as equal: two runs of the same code differ by that much."""
WORKER_COUNTS = (1, 2)
WARM_BATCHES = 8
BATCHES_AHEAD = 16


@dataclass(frozen=True)
class Stretch:
    """How long to run before and while the batches are counted."""

    warm_s: float
    counted_s: float


def stretch_of(settings: Settings) -> Stretch:
    return Stretch(0.05, 0.15) if settings.quick else Stretch(0.5, 2.0)


def loader_rate(loader: Any, units_per_batch: float, stretch: Stretch, epoch: int = ENDLESS) -> Run:
    """Units per second that come out of a loader.

    Args:
        epoch: how many batches it has; so that the stretch ends in time before them.
    """
    at_once = max(loader.num_workers, 1)  # workers that take turns come in step, and their batches in bunches

    def rate() -> float:
        iterator = iter(loader)
        for _ in range(WARM_BATCHES):
            next(iterator)
        warm, _ = _count(lambda: next(iterator), stretch.warm_s, at_once, epoch // 4)
        left = epoch - WARM_BATCHES - warm - BATCHES_AHEAD
        counted, elapsed = _count(lambda: next(iterator), stretch.counted_s, at_once, left)
        return counted * units_per_batch / elapsed

    return rate


def bare_rate(make: Callable[[], object], units: float, processes: int, stretch: Stretch) -> Run:
    """Units per second of bare processes that call `make`, without a loader; each call counts as `units`."""

    def rate() -> float:
        context = multiprocessing.get_context("fork")
        start, rates = context.Barrier(processes), context.SimpleQueue()
        children = [context.Process(target=_make_alone, args=(make, stretch, start, rates)) for _ in range(processes)]
        for child in children:
            child.start()
        total: float = sum(rates.get() for _ in children)
        for child in children:
            child.join()
        return total * units

    return rate


def own_rate(make: Callable[[], object], units: float, stretch: Stretch) -> Run:
    """Units per second of this process, without a loader; each call of `make` counts as `units`."""

    def rate() -> float:
        _count(make, stretch.warm_s)
        counted, elapsed = _count(make, stretch.counted_s)
        return counted * units / elapsed

    return rate


def _make_alone(make: Callable[[], object], stretch: Stretch, start: Any, rates: Any) -> None:
    _count(make, stretch.warm_s)
    start.wait()
    counted, elapsed = _count(make, stretch.counted_s)
    rates.put(counted / elapsed)


def _count(call: Callable[[], object], seconds: float, at_once: int = 1, at_most: int = ENDLESS) -> tuple[int, float]:
    """How often `call` ran in about so many seconds, and in how many exactly."""
    n = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds and n < at_most:
        for _ in range(at_once):
            call()
        n += at_once
    return n, elapsed


def pair_of_loaders(dataset: Any, **options: Any) -> dict[str, Any]:
    """Loaders of the same dataset, torch's and headrace's."""
    return {
        "torch": torch_data.DataLoader(dataset, **options),
        "headrace": headrace.DataLoader(dataset, **options),
    }


def compared(figures: Mapping[str, list[float]], unit: str, limit: str, name: str = "headrace") -> dict[str, Any]:
    """The cells of a row: medians, and ratios to torch and to the limit."""
    return {
        f"torch {unit}": statistics.median(figures["torch"]),
        f"headrace {unit}": statistics.median(figures[name]),
        f"limit {unit}": statistics.median(figures[limit]),
        "spread": spread(figures[name]),
        "x torch": median_ratio(figures[name], figures["torch"]),
        "x limit": median_ratio(figures[name], figures[limit]),
    }
