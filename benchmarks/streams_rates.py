"""How fast whole epochs of streams come out of loaders, by the wall clock; what the benchmarks of streams share.

An epoch is timed from the beginning of its iteration to its end, or as far as it comes in the time that there is.
Worker processes live on from epoch to epoch, and the first round, which starts them, is not counted.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.report import Settings
from benchmarks.timing import Run, median_ratio, spread

BATCH = 256
WORKER_COUNTS = (0, 1, 2)


def longest_seconds(settings: Settings) -> float:
    return 0.3 if settings.quick else 2.0


def epoch_rate(loader: Iterable[Any], units_per_batch: float, longest_s: float, *, from_first: bool = False) -> Run:
    """Units per second that come out of an epoch of a loader.

    Args:
        from_first: whether the clock starts at the first batch only: for those that fill a buffer for seconds before.
    """

    def rate() -> float:
        n = 0
        start = time.perf_counter()
        batches = iter(loader)
        if from_first:
            next(batches)
            start = time.perf_counter()
        for n, _ in enumerate(batches, 1):  # noqa: B007 (the number of batches)
            if time.perf_counter() - start > longest_s:
                break
        return n * units_per_batch / (time.perf_counter() - start)

    return rate


def with_workers(workers: int) -> dict[str, Any]:
    """What every loader is told, ours and the peers'."""
    return {"num_workers": workers, "persistent_workers": workers > 0}


def contest_rows(what: str, workers: int, figures: Mapping[str, list[float]], unit: str) -> Iterator[dict[str, Any]]:
    """The rows of a report: a contestant each."""
    for name, own in figures.items():
        yield {
            "data": what,
            "contestant": name,
            "workers": workers,
            "value": statistics.median(own),
            "unit": unit,
            "spread": spread(own),
        }


def ratio(figures: Mapping[tuple[str, int], list[float]], ours: tuple[str, int], peer: tuple[str, int]) -> float:
    """The median ratio of two contestants, each a name and a number of workers."""
    return median_ratio(figures[ours], figures[peer])


def missing_peers(*modules: str) -> list[str]:
    """A note for each peer that is not installed, and so not measured."""
    return [f"{module} is not installed, and was left out" for module in modules if find_spec(module) is None]


def write_lines(path: Path, n_bytes: int) -> int:
    """Lines of about 100 characters, of words, in random order; returns how many bytes they take."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    lines = [" ".join(rng.choices(words, k=15)) for _ in range(10_000)]
    written = 0
    with closing(path.open("w")) as file:
        while written < n_bytes:
            rng.shuffle(lines)
            written += file.write("\n".join(lines) + "\n")
    return written
