"""How fast do the rows of a TSV of 1,000,000 rows come, next to pandas and to Python's csv in torch's DataLoader?

Batches of 256, as columns and as rows of Python objects, with 0, 1 and 2 workers. pandas is called as tutorials do it,
`read_csv(sep="\\t", iterator=True, chunksize=1)` in an `IterableDataset`, at 0 workers. The texts that Python's
csv gives are made the same numbers as ours, and torch collates them to columns, or leaves them as the same rows, dicts;
each worker takes every n-th row.
"""

from __future__ import annotations

import csv
import random
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils import data as torch_data

from benchmarks.report import Report, Settings, Target, progress
from benchmarks.streams_rates import (
    BATCH,
    WORKER_COUNTS,
    contest_rows,
    epoch_rate,
    longest_seconds,
    missing_peers,
    ratio,
    with_workers,
)
from benchmarks.timing import Run, interleave, torch_threads
from headrace import DataLoader, read_csv

COLUMNS = "headrace, columns"
ROWS = "headrace, rows"
CSV_COLUMNS = "torch, csv module, columns"
CSV_ROWS = "torch, csv module, rows"
PANDAS = "torch, pandas chunksize=1"
WITHOUT_WORKERS = 0


class CsvRows(torch_data.IterableDataset[tuple[int, int, float, str]]):
    """The rows that Python's csv reads, with their numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[tuple[int, int, float, str]]:
        worker = torch_data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        with self.path.open(newline="") as file:
            rows = csv.reader(file, delimiter="\t")
            next(rows)
            for number, label, score, text in islice(rows, first, None, step):
                yield int(number), int(label), float(score), text


class CsvDicts(CsvRows):
    """The same as dicts."""

    def __iter__(self) -> Iterator[Any]:
        for number, label, score, text in super().__iter__():
            yield {"id": number, "label": label, "score": score, "text": text}


class PandasRows(torch_data.IterableDataset[str]):
    """As tutorials do it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[str]:
        import pandas as pd

        for row in pd.read_csv(self.path, sep="\t", iterator=True, chunksize=1):
            yield row["text"].item()


def write_table(path: Path, n_rows: int) -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    texts = [" ".join(rng.choices(words, k=8)) for _ in range(10_000)]
    with path.open("w") as file:
        file.write("id\tlabel\tscore\ttext\n")
        for i in range(n_rows):
            file.write(f"{i}\t{i % 10}\t{i / 3:.4f}\t{texts[i % len(texts)]}\n")


def contestants(path: Path, workers: int, longest_s: float) -> dict[str, Run]:
    options: dict[str, Any] = {"batch_size": BATCH, **with_workers(workers)}
    loaders: dict[str, Any] = {
        COLUMNS: DataLoader(read_csv(path, separator="\t", rows="columns"), **options),
        ROWS: DataLoader(read_csv(path, separator="\t"), collate_fn=list, **options),
        CSV_COLUMNS: torch_data.DataLoader(CsvRows(path), **options),
        CSV_ROWS: torch_data.DataLoader(CsvDicts(path), collate_fn=list, **options),
    }
    if workers == WITHOUT_WORKERS and not missing_peers("pandas"):
        loaders[PANDAS] = torch_data.DataLoader(PandasRows(path), **options)
    return {name: epoch_rate(loader, BATCH, longest_s) for name, loader in loaders.items()}


def run(settings: Settings) -> Report:
    rows: list[dict[str, Any]] = []
    figures: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        path = Path(folder, "table.tsv")
        progress("[streams_tsv] writing the table")
        write_table(path, 50_000 if settings.quick else 1_000_000)
        for workers in WORKER_COUNTS:
            progress(f"[streams_tsv] {workers} workers")
            found = interleave(contestants(path, workers, longest_seconds(settings)), settings.repeats)
            figures |= {(name, workers): own for name, own in found.items()}
            rows += contest_rows("TSV", workers, found, "rows/s")
    targets = [
        Target(f"{ours} against {peer}, {workers} workers", bar, ratio(figures, (ours, workers), (peer, workers)))
        for ours, peer, bar in ((COLUMNS, CSV_COLUMNS, 5), (ROWS, CSV_ROWS, 2.5))
        for workers in (1, 2)
    ]
    if (PANDAS, 0) in figures:
        targets.insert(0, Target("columns against pandas", 600, ratio(figures, (COLUMNS, 0), (PANDAS, 0))))
    return Report(rows, targets, missing_peers("pandas"))
