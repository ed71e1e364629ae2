"""What does it cost that some library has registered a type in torch's `default_collate_fn_map`, as tensordict does?

Samples of other types, with and without the registration in turns: arrays in memory, dicts of 20 small fields, and
large arrays; in process and from workers. One intra-operation thread of torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data._utils.collate import default_collate_fn_map

import headrace
from benchmarks.large_batches import SHAPE, Images
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.small_fields import Records
from benchmarks.steady import NOT_SLOWER, loader_rate, stretch_of
from benchmarks.timing import interleave, median_ratio, torch_threads

WITH, WITHOUT = "registered", "not registered"


class Registered:
    """A type that no sample is of."""


def run(settings: Settings) -> Report:
    rng = np.random.default_rng(0)
    image, table = rng.random(SHAPE, dtype=np.float32), rng.random((1000, 20, 8), dtype=np.float32)
    rows_in_memory = headrace.TensorDataset(rng.random((2**22, 16), dtype=np.float32), np.arange(2**22))
    datasets: dict[str, tuple[Any, int]] = {
        "arrays in memory": (rows_in_memory, 256),
        "small fields": (Records(table), 32),
        "large arrays": (Images(image.copy), 64),
    }
    rows = []
    for kind, (dataset, batch) in datasets.items():
        for workers in (0, 2):
            progress(f"[registered_types] {kind}, {workers} workers")
            loader = headrace.DataLoader(dataset, batch_size=batch, num_workers=workers)
            epoch = min(len(dataset), 2**30) // batch
            rate = loader_rate(loader, batch, stretch_of(settings), epoch)
            with torch_threads(1):
                figures = interleave({WITHOUT: rate, WITH: registered(rate)}, settings.repeats)
            medians = {f"samples/s, {name}": statistics.median(own) for name, own in figures.items()}
            ratio = median_ratio(figures[WITH], figures[WITHOUT])
            rows.append({"samples": kind, "workers": workers, **medians, "ratio": ratio})
    return Report(
        rows, [Target("with against without, the least ratio", NOT_SLOWER, min(row["ratio"] for row in rows))]
    )


def registered(rate: Callable[[], float]) -> Callable[[], float]:
    def run() -> float:
        default_collate_fn_map[Registered] = lambda batch, *, collate_fn_map=None: batch
        try:
            return rate()
        finally:
            del default_collate_fn_map[Registered]

    return run
