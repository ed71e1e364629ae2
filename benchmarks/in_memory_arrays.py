"""How close to a bare NumPy loop are shuffled batches of arrays in memory, and how far from torch's DataLoader?

1,000,000 rows of 16 float32 and an int64 label, batches of 256, in process, one intra-operation thread of torch. An
epoch counts from `iter` to the last batch, the shuffle included. Contestants that need many seconds for an epoch are
timed over its start and 150 batches, and reckoned up. The limits shuffle with NumPy's generator, which is faster than
torch's; the loaders must draw from torch's to give torch's order.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

import headrace
from benchmarks.report import Report, Settings, Target
from benchmarks.timing import Run, epoch_seconds, interleave, median_ratio, spread, torch_threads

BATCH = 256
SLOW_BATCHES = 150

TORCH = "torch, TensorDataset"
TENSORS = "headrace, TensorDataset of tensors"
ARRAYS = "headrace, TensorDataset of arrays"
INDEXED = "limit: NumPy, x[order[i : i + 256]]"
TAKEN = "limit: NumPy, np.take(x, order[i : i + 256], axis=0)"


class HandMadeBatches(torch_data.Dataset[Any]):
    """What a user of torch writes for speed; the collate function must then leave the batch alone."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.as_tensor(indices)
        return self.x[rows], self.y[rows]

    def __len__(self) -> int:
        return len(self.x)


def unchanged(batch: Any) -> Any:
    return batch


class NumpyLoop:
    """The least work: a permutation, and the rows of each slice of it."""

    def __init__(self, x: np.ndarray, y: np.ndarray, rows: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        self.x, self.y, self.rows = x, y, rows
        self.rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        x, y, rows = self.x, self.y, self.rows
        order = self.rng.permutation(len(x))
        for i in range(0, len(x), BATCH):
            yield rows(x, order[i : i + BATCH]), rows(y, order[i : i + BATCH])


def run(settings: Settings) -> Report:
    n = 100_000 if settings.quick else 1_000_000
    rng = np.random.default_rng(0)
    x, y = rng.random((n, 16), dtype=np.float32), rng.integers(10, size=n)
    tensors = torch.from_numpy(x), torch.from_numpy(y)

    def samples_per_second(batches: Any, measured: int | None = None) -> Run:
        return lambda: n / epoch_seconds(batches, -(-n // BATCH), measured)

    def torch_loader(dataset: Any, **options: Any) -> Any:
        return torch_data.DataLoader(dataset, batch_size=BATCH, shuffle=True, **options)

    def our_loader(dataset: Any, **options: Any) -> Any:
        return headrace.DataLoader(dataset, batch_size=BATCH, shuffle=True, **options)

    contestants = {
        TORCH: samples_per_second(torch_loader(torch_data.TensorDataset(*tensors)), SLOW_BATCHES),
        "torch, hand-made __getitems__": samples_per_second(
            torch_loader(HandMadeBatches(*tensors), collate_fn=unchanged)
        ),
        TENSORS: samples_per_second(our_loader(headrace.TensorDataset(*tensors))),
        ARRAYS: samples_per_second(our_loader(headrace.TensorDataset(x, y))),
        "headrace, torch's TensorDataset": samples_per_second(our_loader(torch_data.TensorDataset(*tensors))),
        "headrace, arrays, output='numpy'": samples_per_second(
            our_loader(headrace.TensorDataset(x, y), output="numpy")
        ),
        INDEXED: samples_per_second(NumpyLoop(x, y, lambda array, rows: array[rows])),
        TAKEN: samples_per_second(NumpyLoop(x, y, lambda array, rows: np.take(array, rows, axis=0))),
    }
    with torch_threads(1):
        figures = interleave(contestants, settings.repeats)
    rows = [
        {
            "contestant": name,
            "samples/s": statistics.median(own),
            "spread": spread(own),
            "x torch": median_ratio(own, figures[TORCH]),
            "x NumPy indexed": median_ratio(own, figures[INDEXED]),
            "x NumPy taken": median_ratio(own, figures[TAKEN]),
        }
        for name, own in figures.items()
    ]
    targets = [
        Target(f"{ours} against {other}", bar, median_ratio(figures[ours], figures[other]))
        for ours in (TENSORS, ARRAYS)
        for other, bar in ((TORCH, 40), (INDEXED, 0.5), (TAKEN, 0.5))
    ]
    return Report(rows, targets)
