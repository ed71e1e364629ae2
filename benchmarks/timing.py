"""Interleaved timing: A B A B …, so that whatever else the machine does falls on all contestants alike.

Work that stays in one thread is timed by that thread's own clock, which stands still while other programs hold the
core; work in several threads or processes by the wall clock.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch

Run = Callable[[], float]
"""One repeat of a contestant; returns its figure: samples per second, or seconds."""
Clock = Callable[[], float]

_GLANCE_S = 0.05
_AT_REST = 0.1  # of a core, for all children together
_LONGEST_REST_S = 20.0


def interleave(contestants: Mapping[str, Run], repeats: int) -> dict[str, list[float]]:
    """The figures of each contestant, by round; every round runs all of them once, after one round to warm up."""
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
    gc.freeze()  # what lies ready now need not be searched for garbage before every run
    for round_number in range(-1, repeats):
        for name, run in contestants.items():
            gc.collect()
            _wait_for_rest()
            figure = run()
            if round_number >= 0:
                figures[name].append(figure)
    return figures


def _wait_for_rest() -> None:
    """Wait for workers that the run before has left at work: some fill their buffers for seconds after a `break`."""
    end, before = time.monotonic() + _LONGEST_REST_S, _seconds_of_children()
    while before and time.monotonic() < end:
        time.sleep(_GLANCE_S)
        now = _seconds_of_children()
        if now - before < _AT_REST * _GLANCE_S:
            return
        before = now


def _seconds_of_children() -> float:
    """How long the children of this process have run; 0 if it has none, or if the system does not tell."""
    children = (pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split())
    clocks = (Path(f"/proc/{pid}/schedstat") for pid in children)
    return sum(int(clock.read_text().split()[0]) for clock in clocks if clock.exists()) / 1e9


def median_ratio(figures: list[float], reference: list[float]) -> float:
    """The median over rounds of figure / reference: a noisy neighbour slows both sides of a round."""
    return statistics.median(a / b for a, b in zip(figures, reference, strict=True))


def spread(figures: list[float]) -> float:
    """The distance between the quartiles as a part of the median."""
    if len(figures) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(figures, n=4, method="inclusive")
    return (high - low) / middle


def seconds(fn: Callable[[], object], clock: Clock = time.thread_time) -> float:
    start = clock()
    fn()
    return clock() - start


def exhaust(batches: Iterable[object]) -> None:
    for _ in batches:
        pass


def epoch_seconds(batches: Iterable[object], n_batches: int, measured: int | None = None) -> float:
    """How long an epoch of `n_batches` takes: the time to the first batch, and as many further ones as there are.

    Args:
        measured: time only that many of the further batches, and reckon the rest from them; all if None.
    """
    start = time.thread_time()
    iterator = iter(batches)
    next(iterator)
    first = time.thread_time()
    further = n_batches - 1
    timed = further if measured is None else min(measured, further)
    exhaust(islice(iterator, timed))
    end = time.thread_time()
    return (first - start) + (end - first) * further / max(timed, 1)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Run with so many of torch's intra-operation threads; None leaves torch's own choice."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
