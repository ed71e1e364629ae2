"""How long does it take to resume a stream half-way through an epoch, next to replaying it up to there?

The time is that from a new loader to the first batch after the half: with the state that was saved there, and by
passing over all batches before. In order and shuffled, 0 and 2 workers, which are started in that time, too. Resuming
takes the same time in a stream of any length, replaying grows with it: 200 MB of text, and 2 GB, for which the targets
are. Hugging Face `datasets` resumes the smaller one by its own state.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from itertools import islice, product
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

    def seconds() -> float:
        start = time.perf_counter()
        with make_ours(path, shuffled, workers) as loader:
            loader.load_state_dict(json.loads(state))
            next(iter(loader))
            return time.perf_counter() - start

    return seconds


def replay_ours(path: Path, shuffled: bool, workers: int, half: int) -> Run:
    def seconds() -> float:
        start = time.perf_counter()
        with make_ours(path, shuffled, workers) as loader:
            exhaust(islice(iter(loader), half + 1))
            return time.perf_counter() - start

    return seconds


def resume_hugging_face(path: Path, shuffled: bool, half: int) -> Run:
    dataset = make_hugging_face(path, shuffled)
    exhaust(islice(iter(torch_data.DataLoader(dataset, batch_size=BATCH)), half))
    state = dataset.state_dict()

    def seconds() -> float:
        start = time.perf_counter()
        dataset = make_hugging_face(path, shuffled)
        dataset.load_state_dict(state)
        next(iter(torch_data.DataLoader(dataset, batch_size=BATCH)))
        return time.perf_counter() - start

    return seconds


def run(settings: Settings) -> Report:
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    sizes = (10_000_000, 40_000_000) if settings.quick else (200_000_000, 2_000_000_000)
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        path = Path(folder, "text.txt")
        for size in sizes:
            progress(f"[streams_resume] writing {size / 1e6:,.0f} MB of text")
            write_lines(path, size)
            half = sum(1 for _ in path.open()) // BATCH // 2
            for shuffled, workers in product((False, True), (0, 2)):
                order = "shuffled" if shuffled else "in order"
                progress(f"[streams_resume] {size / 1e6:,.0f} MB, {order}, {workers} workers")
                has_peer = size == sizes[0] and not workers and not missing_peers("datasets")
                figures = interleave(runs_of(path, shuffled, workers, half, has_peer=has_peer), settings.repeats)
                for name, own in figures.items():
                    own_row = row(size, order, name, workers, own)
                    rows.append({**own_row, "x resumed": median_ratio(own, figures[RESUMED])})
                if size == sizes[-1]:
                    what = f"{order}, {workers} workers: the time to replay as a multiple of that to resume"
                    targets.append(Target(what, 20, median_ratio(figures[REPLAYED], figures[RESUMED])))
    return Report(rows, targets, missing_peers("datasets"))


def runs_of(path: Path, shuffled: bool, workers: int, half: int, *, has_peer: bool) -> dict[str, Run]:
    runs = {
        RESUMED: resume_ours(path, shuffled, workers, half),
        REPLAYED: replay_ours(path, shuffled, workers, half),
    }
    return {HUGGING_FACE: resume_hugging_face(path, shuffled, half), **runs} if has_peer else runs


def row(size: int, order: str, name: str, workers: int, figures: list[float]) -> dict[str, Any]:
    return {
        "MB": size / 1e6,
        "order": order,
        "contestant": name,
        "workers": workers,
        "ms": 1e3 * statistics.median(figures),
        "spread": spread(figures),
    }
