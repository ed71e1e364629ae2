"""Do workers pay for arrays that lie in memory: 1,000,000 x 16 float32 in a TensorDataset, batches of 256, shuffled?

One dataset for both loaders, torch's own. The limit: this process takes the rows of one slice of a permutation after
the other with NumPy, and sends nothing. Our loader without workers is there to compare. Counted within one epoch. One
intra-operation thread of torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

import headrace
from benchmarks.report import Report, Settings, Target
from benchmarks.steady import WORKER_COUNTS, loader_rate, own_rate, stretch_of
from benchmarks.timing import Run, interleave, median_ratio, spread, torch_threads

BATCH = 256
N = 1_000_000
COLUMNS = 16
LIMIT = "limit: np.take"


def run(settings: Settings) -> Report:
    x = np.random.default_rng(0).random((N, COLUMNS), dtype=np.float32)
    dataset = torch_data.TensorDataset(torch.from_numpy(x))
    stretch = stretch_of(settings)

    def samples_per_second(library: Any, workers: int) -> Run:
        loader = library.DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)
        return loader_rate(loader, BATCH, stretch, epoch=N // BATCH)

    contestants = {LIMIT: own_rate(taker(x), BATCH, stretch)}
    for workers in WORKER_COUNTS:
        contestants[f"torch, {workers}"] = samples_per_second(torch_data, workers)
        contestants[f"headrace, {workers}"] = samples_per_second(headrace, workers)
    contestants["headrace, 0"] = samples_per_second(headrace, 0)
    with torch_threads(1):
        figures = interleave(contestants, settings.repeats)
    rows = [
        {
            "contestant, workers": name,
            "samples/s": statistics.median(own),
            "spread": spread(own),
            "x torch, 2": median_ratio(own, figures["torch, 2"]),
            "x limit": median_ratio(own, figures[LIMIT]),
        }
        for name, own in figures.items()
    ]
    targets = [Target("2 workers against torch's", 25, median_ratio(figures["headrace, 2"], figures["torch, 2"]))]
    return Report(rows, targets)


def taker(x: np.ndarray) -> Callable[[], np.ndarray]:
    order = np.random.default_rng(0).permutation(len(x))
    starts = cycle(range(0, len(x) - BATCH, BATCH))

    def take() -> np.ndarray:
        start = next(starts)
        return np.take(x, order[start : start + BATCH], axis=0)

    return take
