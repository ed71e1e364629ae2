"""How fast are 64 streams side by side, for models that keep a state: frames of 80 float32, and tokens?

Against the usual way with torch: a dataset that zips its streams, split over loaders with one worker each, whose parts
are joined step by step. Both go through the same sequences, arrays of frames and lists of tokens, in shuffled orders,
for ever. Tokens come in chunks of 32 steps, too, for which the steps of torch's are stacked by hand. The limit: this
process stacks chunks of arrays with NumPy. One intra-operation thread of torch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from benchmarks.report import Report, Settings, Target, progress
from benchmarks.steady import WORKER_COUNTS, Stretch, compared, loader_rate, own_rate, stretch_of
from benchmarks.timing import Run, interleave, torch_threads
from headrace import MultiStreamDataLoader

STREAMS = 64
WIDTH = 80
LENGTH = 32
LIMIT = "limit: np.stack"
TARGETS = {"frames": 200, "tokens": 10, "tokens in chunks": 40}


class Streams(torch_data.IterableDataset[Any]):
    """As many streams as asked for, each through all sequences in an order of its own."""

    def __init__(self, sequences: list[Any], batch_size: int) -> None:
        self.sequences = sequences
        self.batch_size = batch_size

    def stream(self) -> Iterator[Any]:
        return chain.from_iterable(cycle(random.sample(self.sequences, len(self.sequences))))

    def __iter__(self) -> Iterator[Any]:
        return zip(*[self.stream() for _ in range(self.batch_size)], strict=False)


class TorchStreams:
    """Loaders with one worker each, whose parts are joined."""

    def __init__(self, sequences: list[Any], workers: int, chunk: int | None) -> None:
        self.num_workers = workers
        self.chunk = chunk
        self.datasets = [Streams(sequences, STREAMS // workers) for _ in range(workers)]

    def __iter__(self) -> Iterator[Any]:
        loaders = [torch_data.DataLoader(dataset, num_workers=1, batch_size=None) for dataset in self.datasets]
        steps = (list(chain(*parts)) for parts in zip(*loaders, strict=False))
        if self.chunk is None:
            return steps
        return iter(lambda: torch.tensor(list(islice(steps, self.chunk))), None)


def run(settings: Settings) -> Report:
    generator = np.random.default_rng(0)
    lengths = generator.integers(200, 2000, 100).tolist()
    frames = [generator.random((n, WIDTH), dtype=np.float32) for n in lengths]
    tokens = [generator.integers(0, 50_000, n).tolist() for n in lengths]
    kinds = {"frames": (frames, None), "tokens": (tokens, None), "tokens in chunks": (tokens, LENGTH)}
    rows = []
    for kind, (sequences, chunk) in kinds.items():
        for workers in WORKER_COUNTS:
            progress(f"[multi_stream] {kind}, {workers} workers")
            rows.append({"items": kind, "workers": workers, **compare(sequences, chunk, workers, settings)})
    least = {kind: min(row["x torch"] for row in rows if row["items"] == kind) for kind in TARGETS}
    targets = [Target(f"{kind}: items/s against torch", bar, least[kind]) for kind, bar in TARGETS.items()]
    return Report(rows, targets)


def compare(sequences: list[Any], chunk: int | None, workers: int, settings: Settings) -> dict[str, Any]:
    stretch = stretch_of(settings)
    arrays = [np.asarray(sequence[:LENGTH]) for sequence in sequences[:STREAMS]]
    contestants = {
        "torch": rate_of(TorchStreams(sequences, workers, chunk), chunk, stretch),
        "headrace": rate_of(
            MultiStreamDataLoader(sequences, STREAMS, seq_len=chunk, num_workers=workers), chunk, stretch
        ),
        LIMIT: own_rate(lambda: np.stack(arrays, axis=1), STREAMS * LENGTH, stretch),
    }
    with torch_threads(1):
        figures = interleave(contestants, settings.repeats)
    return compared(figures, "items/s", LIMIT)


def rate_of(loader: Any, chunk: int | None, stretch: Stretch) -> Run:
    return loader_rate(loader, STREAMS * (chunk or 1), stretch)
