"""How fast do strings come out of two workers: lines of text, 256 a batch, and 256 times 2 KB of bytes?

The lines, of about 100 characters, are read from text files by an iterable dataset, each worker its own files; the
bytes are fresh slices of a long string. One dataset for all loaders. Two workers are also compared with our own loader
without workers, which has nothing to send. The limit: two bare processes that make lists of samples, and send nothing.
One intra-operation thread of torch. "Not slower" leaves 3 % for noise.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from torch.utils import data as torch_data

import headrace
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
from benchmarks.timing import interleave, median_ratio, torch_threads

BATCH = 256
N_FILES = 4
LINES_PER_FILE = 20_000
LIMIT = "bare processes"
INLINE = "headrace, 0 workers"


class Lines(torch_data.IterableDataset[str]):
    """Endless; every worker goes round and round its own files."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[str]:
        worker = torch_data.get_worker_info()
        files = self.files if worker is None else self.files[worker.id :: worker.num_workers]
        for path in cycle(files):
            with path.open() as file:
                for line in file:
                    yield line.rstrip("\n")


class Records:
    """Endless; fresh bytes."""

    def __init__(self, n_bytes: int) -> None:
        self.source = random.Random(0).randbytes(2**20)
        self.n_bytes = n_bytes

    def __getitem__(self, index: int) -> bytes:
        start = index % 2**19
        return self.source[start : start + self.n_bytes]

    def __len__(self) -> int:
        return ENDLESS


def write_files(folder: str) -> list[Path]:
    """Lines of words, all different."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    files = [Path(folder, f"part-{k}.txt") for k in range(N_FILES)]
    for path in files:
        path.write_text("".join(" ".join(rng.choices(words, k=15)) + "\n" for _ in range(LINES_PER_FILE)))
    return files


def run(settings: Settings) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        datasets = {"lines": Lines(write_files(folder)), "2 KB of bytes": Records(2048)}
        rows = []
        for kind, dataset in datasets.items():
            for workers in WORKER_COUNTS:
                progress(f"[strings] {kind}, {workers} workers")
                rows.append({"sample": kind, "workers": workers, **compare(dataset, workers, settings)})
    lines, records = (row for row in rows if row["workers"] == 2)
    targets = [
        Target("lines, 2 workers against torch's", 3, lines["x torch"]),
        Target("lines, 2 workers not slower than our 0", NOT_SLOWER, lines["x 0 workers"]),
        Target("bytes, 2 workers against torch's", 5, records["x torch"]),
    ]
    return Report(rows, targets)


def compare(dataset: Any, workers: int, settings: Settings) -> dict[str, Any]:
    stretch = stretch_of(settings)
    loaders = pair_of_loaders(dataset, batch_size=BATCH, num_workers=workers)
    loaders[INLINE] = headrace.DataLoader(dataset, batch_size=BATCH)
    contestants = {name: loader_rate(loader, BATCH, stretch) for name, loader in loaders.items()}
    samples = iter(dataset) if isinstance(dataset, Lines) else map(dataset.__getitem__, range(ENDLESS))
    contestants[LIMIT] = bare_rate(partial(take_some, samples), BATCH, workers, stretch)
    with torch_threads(1):
        figures = interleave(contestants, settings.repeats)
    return {
        **compared(figures, "samples/s", LIMIT),
        "x 0 workers": median_ratio(figures["headrace"], figures[INLINE]),
    }


def take_some(samples: Iterator[Any]) -> list[Any]:
    return list(islice(samples, BATCH))
