"""How long does it take to resume a stream half-way through an epoch, next to replaying it up to there?

The time is that from a new loader to the first batch after the half: with the state that was saved there, and by
passing over all batches before. 200 MB of text, in order and shuffled, 0 and 2 workers. Hugging Face `datasets` resumes
the same text by its own state.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils import data as torch_data

from benchmarks.report import Report, Settings, Target, progress
from benchmarks.streams_rates import BATCH, missing_peers, write_lines
from benchmarks.timing import Run, exhaust, interleave, median_ratio, spread, torch_threads
from headrace import DataLoader, read_text

RESUMED = "headrace, resumed"
REPLAYED = "headrace, replayed"
HUGGING_FACE = "datasets, resumed"


def make_ours(path: Path, shuffled: bool, workers: int) -> Any:
    stream = read_text(path)
    return DataLoader(stream.shuffle() if shuffled else stream, batch_size=BATCH, seed=0, num_workers=workers)


def make_hugging_face(path: Path, shuffled: bool) -> Any:
    from datasets import load_dataset

    dataset = load_dataset("text", data_files=str(path), split="train", streaming=True)
    return dataset.shuffle(seed=0, buffer_size=10_000) if shuffled else dataset


def resume_ours(path: Path, shuffled: bool, workers: int, half: int) -> Run:
    with make_ours(path, shuffled, workers) as loader:
        exhaust(islice(iter(loader), half))
        state = json.dumps(loader.state_dict())

    def first_batch() -> None:
        with make_ours(path, shuffled, workers) as loader:
            loader.load_state_dict(json.loads(state))
            next(iter(loader))

    return lambda: seconds_of(first_batch)


def replay_ours(path: Path, shuffled: bool, workers: int, half: int) -> Run:
    def first_batch() -> None:
        with make_ours(path, shuffled, workers) as loader:
            exhaust(islice(iter(loader), half + 1))

    return lambda: seconds_of(first_batch)


def resume_hugging_face(path: Path, shuffled: bool, half: int) -> Run:
    dataset = make_hugging_face(path, shuffled)
    exhaust(islice(iter(torch_data.DataLoader(dataset, batch_size=BATCH)), half))
    state = dataset.state_dict()

    def first_batch() -> None:
        dataset = make_hugging_face(path, shuffled)
        dataset.load_state_dict(state)
        next(iter(torch_data.DataLoader(dataset, batch_size=BATCH)))

    return lambda: seconds_of(first_batch)


def seconds_of(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def run(settings: Settings) -> Report:
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        path = Path(folder, "text.txt")
        progress("[streams_resume] writing the text")
        write_lines(path, 40_000_000 if settings.quick else 200_000_000)
        half = sum(1 for _ in path.open()) // BATCH // 2
        for shuffled in (False, True):
            for workers in (0, 2):
                order = "shuffled" if shuffled else "in order"
                progress(f"[streams_resume] {order}, {workers} workers")
                runs = {
                    RESUMED: resume_ours(path, shuffled, workers, half),
                    REPLAYED: replay_ours(path, shuffled, workers, half),
                }
                if not workers and not missing_peers("datasets"):
                    runs[HUGGING_FACE] = resume_hugging_face(path, shuffled, half)
                figures = interleave(runs, settings.repeats)
                rows += [row(order, name, workers, own) for name, own in figures.items()]
                what = f"{order}, {workers} workers: the time to replay as a multiple of that to resume"
                targets.append(Target(what, 20, median_ratio(figures[REPLAYED], figures[RESUMED])))
    return Report(rows, targets, missing_peers("datasets"))


def row(order: str, name: str, workers: int, figures: list[float]) -> dict[str, Any]:
    return {
        "order": order,
        "contestant": name,
        "workers": workers,
        "ms": 1e3 * statistics.median(figures),
        "spread": spread(figures),
    }
