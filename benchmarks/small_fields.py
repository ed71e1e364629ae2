"""How fast do samples of many small fields come out of workers: dicts of 20 arrays of 8 float32, batches of 32?

One dataset for both loaders; each sample is a fresh dict of fresh views, of arrays or of tensors. The limit: as many
bare processes as there are workers, that make the samples and join each field with NumPy, and send nothing. One
intra-operation thread of torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.report import Report, Settings, Target, progress
from benchmarks.steady import ENDLESS, WORKER_COUNTS, bare_rate, compared, loader_rate, pair_of_loaders, stretch_of
from benchmarks.timing import interleave, torch_threads

BATCH = 32
N_FIELDS = 20
WIDTH = 8
LIMIT = "bare processes"


class Records:
    """Endless; a sample has a name and a short row for each field."""

    def __init__(self, table: Any) -> None:
        self.names = [f"field_{k}" for k in range(N_FIELDS)]
        self.table = table

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(zip(self.names, self.table[index % len(self.table)], strict=True))

    def __len__(self) -> int:
        return ENDLESS


def run(settings: Settings) -> Report:
    table = np.random.default_rng(0).random((1000, N_FIELDS, WIDTH), dtype=np.float32)
    arrays, tensors = Records(table), Records(torch.from_numpy(table))
    rows = []
    for kind, dataset in (("arrays", arrays), ("tensors", tensors)):
        for workers in WORKER_COUNTS:
            progress(f"[small_fields] {kind}, {workers} workers")
            rows.append({"fields": kind, "workers": workers, **compare(dataset, arrays, workers, settings)})
    targets = [Target("samples/s against torch, the least ratio", 5, min(row["x torch"] for row in rows))]
    return Report(rows, targets)


def compare(dataset: Records, arrays: Records, workers: int, settings: Settings) -> dict[str, Any]:
    stretch = stretch_of(settings)

    def make_batch() -> dict[str, np.ndarray]:
        samples = [arrays[i] for i in range(BATCH)]
        return {name: np.concatenate([sample[name] for sample in samples]) for name in arrays.names}

    loaders = pair_of_loaders(dataset, batch_size=BATCH, num_workers=workers)
    contestants = {name: loader_rate(loader, BATCH, stretch) for name, loader in loaders.items()}
    contestants[LIMIT] = bare_rate(make_batch, BATCH, workers, stretch)
    with torch_threads(1):
        figures = interleave(contestants, settings.repeats)
    return compared(figures, "samples/s", LIMIT)
