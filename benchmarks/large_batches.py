"""How fast do large batches come, from each engine: 64 samples of 3 x 224 x 224 float32, made by a mere copy?

One dataset for both loaders; each `__getitem__` returns a fresh array, or a fresh tensor. The limits, without a loader:
one copy of each sample into memory that is used again (here, with the samples at hand), and as many bare processes as
there are workers, that make the samples and copy each once. One intra-operation thread of torch. GB are 10^9 bytes.
torch has no threads for workers: where headrace has, torch has processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import headrace
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.steady import (
    ENDLESS,
    WORKER_COUNTS,
    Stretch,
    bare_rate,
    compared,
    loader_rate,
    own_rate,
    pair_of_loaders,
    stretch_of,
)
from benchmarks.timing import interleave, median_ratio, torch_threads

BATCH = 64
SHAPE = (3, 224, 224)
GB_PER_BATCH = 4 * BATCH * int(np.prod(SHAPE)) / 1e9
COPY = "one copy"
BARE = "bare processes"


class Images:
    """Endless; a sample is a fresh copy of the one image."""

    def __init__(self, copy_image: Callable[[], Any]) -> None:
        self.copy_image = copy_image

    def __getitem__(self, index: int) -> Any:
        return self.copy_image()

    def __len__(self) -> int:
        return ENDLESS


def run(settings: Settings) -> Report:
    image = np.random.default_rng(0).random(SHAPE, dtype=np.float32)
    datasets = {"array": Images(image.copy), "tensor": Images(torch.from_numpy(image).clone)}
    engines = [("none", 0), *(("threads", n) for n in WORKER_COUNTS), *(("processes", n) for n in WORKER_COUNTS)]
    rows = []
    for kind, dataset in datasets.items():
        for engine, workers in engines:
            progress(f"[large_batches] {kind}, {engine}, {workers} workers")
            figures = compare(dataset, image, engine, workers, settings)
            rows.append({"sample": kind, "engine": engine, "workers": workers, **figures})
    here = [row for row in rows if row["engine"] != "processes"]
    targets = [
        Target("GB/s against torch, the least ratio", 5, min(row["x torch"] for row in rows)),
        Target("in one process, against torch, the least ratio", 6, min(row["x torch"] for row in here)),
        Target("in one process, against one copy, the least ratio", 0.55, min(row["x limit"] for row in here)),
    ]
    return Report(rows, targets)


def compare(dataset: Images, image: np.ndarray, engine: str, workers: int, settings: Settings) -> dict[str, Any]:
    stretch: Stretch = stretch_of(settings)
    loaders = pair_of_loaders(dataset, batch_size=BATCH, num_workers=workers)
    if engine == "threads":
        loaders["headrace"] = headrace.DataLoader(dataset, batch_size=BATCH, num_workers=workers, engine=engine)
    contestants = {name: loader_rate(loader, GB_PER_BATCH, stretch) for name, loader in loaders.items()}
    contestants[COPY] = own_rate(copier(lambda: image), GB_PER_BATCH, stretch)
    processes = max(workers, 1)
    contestants[BARE] = bare_rate(copier(lambda: np.asarray(dataset[0])), GB_PER_BATCH, processes, stretch)
    with torch_threads(1):
        figures = interleave(contestants, settings.repeats)
    return {
        **compared(figures, "GB/s", COPY),
        "x bare processes": median_ratio(figures["headrace"], figures[BARE]),
    }


def copier(make: Callable[[], np.ndarray]) -> Callable[[], None]:
    """Fills one batch after the other, in the memory of two."""
    batches = [np.zeros((BATCH, *SHAPE), np.float32) for _ in range(2)]

    def fill() -> None:
        batches.reverse()
        for row in batches[0]:
            row[...] = make()

    return fill
