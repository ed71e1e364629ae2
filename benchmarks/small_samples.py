"""How much faster than torch are small samples from a plain Python `__getitem__`, the dataset most users write?

The samples lie ready in a list, so the time is the loader's own. In process, shuffled, one intra-operation thread of
torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

import headrace
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.timing import exhaust, interleave, median_ratio, seconds, spread, torch_threads

_rng = np.random.default_rng(0)

SAMPLES: dict[str, Callable[[int], Any]] = {
    "array of 16, int": lambda i: (_rng.random(16, dtype=np.float32), i),
    "array of 16": lambda i: _rng.random(16, dtype=np.float32),
    "dict of 5 arrays": lambda i: {name: _rng.random(8, dtype=np.float32) for name in "abcde"},
    "array 28x28, int": lambda i: (_rng.random((28, 28), dtype=np.float32), i),
    "tensor of 16, int": lambda i: (torch.rand(16), i),
    "dict of 5 tensors": lambda i: {name: torch.rand(8) for name in "abcde"},
    "float": float,
    "float, str": lambda i: (float(i), f"sample {i}"),
    "str": lambda i: f"sample {i}",
}
ARE_ARRAYS = tuple(name for name in SAMPLES if "array" in name)


class PlainDataset:
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)


def run(settings: Settings) -> Report:
    n = 2_560 if settings.quick else 20_480
    rows = []
    for name, make_sample in SAMPLES.items():
        dataset = PlainDataset([make_sample(i) for i in range(n)])
        for batch_size in (32, 256):
            progress(f"[small_samples] {name}, batch {batch_size}")
            rows.append(compare(name, dataset, batch_size, settings.repeats))
    arrays = [row["x torch"] for row in rows if row["sample"] in ARE_ARRAYS]
    targets = [
        Target("small arrays, the least ratio to torch", 1.2, min(arrays)),
        Target("any small sample, the least ratio to torch", 1.0, min(row["x torch"] for row in rows)),
    ]
    return Report(rows, targets)


def compare(name: str, dataset: PlainDataset, batch_size: int, repeats: int) -> dict[str, Any]:
    loaders = {
        "torch": torch_data.DataLoader(dataset, batch_size=batch_size, shuffle=True),  # type: ignore[arg-type]
        "headrace": headrace.DataLoader(dataset, batch_size=batch_size, shuffle=True),
    }

    def samples_per_second(loader: Any) -> Callable[[], float]:
        return lambda: len(dataset) / seconds(lambda: exhaust(loader))

    with torch_threads(1):
        figures = interleave({key: samples_per_second(loader) for key, loader in loaders.items()}, repeats)
    return {
        "sample": name,
        "batch": batch_size,
        "torch samples/s": statistics.median(figures["torch"]),
        "headrace samples/s": statistics.median(figures["headrace"]),
        "spread": spread(figures["headrace"]),
        "x torch": median_ratio(figures["headrace"], figures["torch"]),
    }
