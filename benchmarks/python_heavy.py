"""Is headrace slower than torch with workers whose `__getitem__` is slow Python: 20 µs, 200 µs, 2 ms a sample?

A loop over numbers, for as long as it takes; a sample is one small array. One dataset for both loaders. The limit: as
many bare processes as there are workers, that make the samples and do nothing with them. One intra-operation thread of
torch. "Not slower" leaves 3 % for noise.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.report import Report, Settings, Target, progress
from benchmarks.steady import (
    ENDLESS,
    NOT_SLOWER,
    WORKER_COUNTS,
    bare_rate,
    compared,
    loader_rate,
    pair_of_loaders,
    stretch_of,
)
from benchmarks.timing import interleave, seconds, torch_threads

BATCHES = {20: 128, 200: 32, 2000: 8}
"""The microseconds of a sample, and how many make a batch."""
LIMIT = "bare processes"


class Slow:
    """Endless; a sample takes `n` rounds of a loop."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __getitem__(self, index: int) -> np.ndarray:
        total = 0
        for i in range(self.n):
            total += (index + i) % 7
        return np.full(4, total)

    def __len__(self) -> int:
        return ENDLESS


def rounds_of(microseconds: int) -> int:
    n = 10_000
    fastest = min(seconds(lambda: Slow(n)[0], time.thread_time) for _ in range(20))
    return max(1, round(microseconds * 1e-6 / fastest * n))


def run(settings: Settings) -> Report:
    rows = []
    for microseconds, batch_size in BATCHES.items():
        dataset = Slow(rounds_of(microseconds))
        for workers in WORKER_COUNTS:
            progress(f"[python_heavy] {microseconds} µs, {workers} workers")
            cells = {"µs a sample": microseconds, "batch": batch_size, "workers": workers}
            rows.append({**cells, **compare(dataset, batch_size, workers, settings)})
    least = min(row["x torch"] for row in rows)
    return Report(rows, [Target("not slower than torch anywhere, the least ratio", NOT_SLOWER, least)])


def compare(dataset: Slow, batch_size: int, workers: int, settings: Settings) -> dict[str, Any]:
    stretch = stretch_of(settings)
    loaders = pair_of_loaders(dataset, batch_size=batch_size, num_workers=workers)
    contestants = {name: loader_rate(loader, batch_size, stretch) for name, loader in loaders.items()}
    contestants[LIMIT] = bare_rate(lambda: dataset[0], 1, workers, stretch)
    with torch_threads(1):
        figures = interleave(contestants, settings.repeats)
    return compared(figures, "samples/s", LIMIT)
