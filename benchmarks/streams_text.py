"""How fast do the lines and words of 200 MB of text come, next to an IterableDataset over `open()` in torch's loader?

Batches of 256, with 0, 1 and 2 workers; each worker of torch takes every n-th line. Words come without lines: ours
from `read_text(words=True)`. The limit is to split the text and to cut the list, and nothing else. Memory is what a
process takes at its peak while it reads all lines: it must not grow with the file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils import data as torch_data

from benchmarks.memory import peak_mb
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.steady import NOT_SLOWER
from benchmarks.streams_rates import (
    BATCH,
    WORKER_COUNTS,
    contest_rows,
    epoch_rate,
    longest_seconds,
    ratio,
    with_workers,
    write_lines,
)
from benchmarks.timing import Run, exhaust, interleave, torch_threads
from headrace import DataLoader, read_text

OURS = "headrace"
OURS_BESIDE = "headrace, 0 workers"
LIMIT = "limit: str.split alone"
TORCH = "torch"
LINES, WORDS = "lines", "words"


class Lines(torch_data.IterableDataset[str]):
    """The lines of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[str]:
        worker = torch_data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        with self.path.open() as file:
            for line in islice(file, first, None, step):
                yield line.rstrip("\n")


class Words(Lines):
    """The words of a file."""

    def __iter__(self) -> Iterator[str]:
        for line in super().__iter__():
            yield from line.split()


class SplitAlone:
    """Lists of lines or words of a file, by Python's fastest way to make them, with no care for those that are cut."""

    def __init__(self, path: Path, separator: str | None) -> None:
        self.path = path
        self.separator = separator

    def __iter__(self) -> Iterator[list[str]]:
        with self.path.open() as file:
            while text := file.read(1 << 16):
                rows = text.split(self.separator)
                yield from (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))


def contestants(path: Path, kind: str, workers: int, mb_per_batch: float, longest_s: float) -> dict[str, Run]:
    options: dict[str, Any] = {"batch_size": BATCH, **with_workers(workers)}
    theirs = Words(path) if kind == WORDS else Lines(path)
    loaders: dict[str, Iterable[Any]] = {
        OURS: DataLoader(read_text(path, words=kind == WORDS), **options),
        TORCH: torch_data.DataLoader(theirs, **options),
    }
    if workers == 0:
        loaders[LIMIT] = SplitAlone(path, "\n" if kind == LINES else None)
    if workers == 2:
        loaders[OURS_BESIDE] = DataLoader(read_text(path, words=kind == WORDS), batch_size=BATCH)
    return {name: epoch_rate(loader, mb_per_batch, longest_s) for name, loader in loaders.items()}


def mb_per_batch(path: Path, kind: str) -> float:
    """How much of the file a batch is, by its first megabytes."""
    with path.open() as file:
        text = file.read(4 << 20)
    n = text.count("\n") if kind == LINES else len(text.split())
    return BATCH * len(text) / n / 1e6


def peak_of(path: Path) -> float:
    """The most memory that a fresh process takes to read all lines of a file."""
    command = [sys.executable, "-m", "benchmarks.streams_text", str(path)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def run(settings: Settings) -> Report:
    rows: list[dict[str, Any]] = []
    figures: dict[str, dict[tuple[str, int], list[float]]] = {LINES: {}, WORDS: {}}
    n_bytes = 20_000_000 if settings.quick else 200_000_000
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        progress("[streams_text] writing the text")
        path, tenth = Path(folder, "text.txt"), Path(folder, "tenth.txt")
        write_lines(path, n_bytes)
        write_lines(tenth, n_bytes // 10)
        for kind in (LINES, WORDS):
            for workers in WORKER_COUNTS:
                progress(f"[streams_text] {kind}, {workers} workers")
                runs = contestants(path, kind, workers, mb_per_batch(path, kind), longest_seconds(settings))
                found = interleave(runs, settings.repeats)
                figures[kind] |= {(name, workers): own for name, own in found.items()}
                rows += contest_rows(kind, workers, found, "MB/s")
        small, large = peak_of(tenth), peak_of(path)
    return Report(rows, [*targets_of(figures, small, large)])


def targets_of(figures: dict[str, dict[tuple[str, int], list[float]]], small: float, large: float) -> Iterator[Target]:
    for kind, bar in ((LINES, 1.8), (WORDS, 4)):
        own = figures[kind]
        yield Target(f"{kind} against torch, 0 workers", bar, ratio(own, (OURS, 0), (TORCH, 0)))
        yield Target(f"{kind} against torch, 2 workers", 4, ratio(own, (OURS, 2), (TORCH, 2)))
        yield Target(f"{kind}, 2 workers not slower than our 0", NOT_SLOWER, ratio(own, (OURS, 2), (OURS_BESIDE, 2)))
    yield Target(f"memory for a tenth of the file ({small:.0f} MB) against all of it", 0.9, small / large)


if __name__ == "__main__":
    exhaust(DataLoader(read_text(sys.argv[1]), batch_size=BATCH, output="numpy"))
    print(json.dumps(peak_mb()))
