"""How long does it take to resume in the middle of a shuffled epoch, next to torchdata and to a fresh start?

The time is that from a new loader and a saved state to the first batch of 256, half-way through the data; of a fresh
start, from a new loader to its first batch. The samples are ints of a dataset in Python, so that little but the order
costs anything. Memory is the growth of the process's peak until then, in a fresh interpreter.
"""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils import data as torch_data

from benchmarks.memory import peak_mb
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.timing import Run, exhaust, interleave, median_ratio, spread
from headrace import DataLoader

BATCH = 256
LARGE = 10**9
OURS = "headrace, with a seed"
UNSEEDED = "headrace, without a seed"
TORCHDATA = "torchdata StatefulDataLoader"
FRESH = "headrace, with a seed, a fresh start"
FRESH_TORCH = "torch DataLoader, a fresh start"


class Numbers(torch_data.Dataset[int]):
    """A range, in Python."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


def torchdata_loader(dataset: Any, **arguments: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    warnings.filterwarnings("ignore", "'set_vital' is deprecated")
    logging.getLogger("torchdata").setLevel(logging.ERROR)
    return StatefulDataLoader(dataset, **arguments)


MAKE: dict[str, Callable[..., Any]] = {
    OURS: lambda dataset, **arguments: DataLoader(dataset, seed=0, **arguments),
    UNSEEDED: DataLoader,
    TORCHDATA: torchdata_loader,
    FRESH: lambda dataset, **arguments: DataLoader(dataset, seed=0, **arguments),
    FRESH_TORCH: torch_data.DataLoader,
}


def make_loader(name: str, n: int, workers: int) -> Any:
    return MAKE[name](Numbers(n), batch_size=BATCH, shuffle=True, num_workers=workers)


def state_half_way(name: str, n: int, workers: int) -> Any:
    """What the loader tells half-way through its first epoch; None for those that start afresh."""
    if name in (FRESH, FRESH_TORCH):
        return None
    loader = make_loader(name, n, workers)
    iterator = iter(loader)
    exhaust(islice(iterator, n // BATCH // 2))
    return loader.state_dict()


def seconds_to_first(name: str, n: int, workers: int, state: Any) -> float:
    start = time.perf_counter()
    loader = make_loader(name, n, workers)
    if state is not None:
        loader.load_state_dict(state)
    iterator = iter(loader)
    assert len(next(iterator)) == BATCH
    taken = time.perf_counter() - start
    if isinstance(loader, DataLoader):
        loader.close()
    return taken


def time_to_first(name: str, n: int, workers: int) -> Run:
    state = state_half_way(name, n, workers)
    return lambda: seconds_to_first(name, n, workers, state)


def measure_far(n: int) -> dict[str, float]:
    next(iter(make_loader(OURS, 1000, 0)))
    before = peak_mb()
    loader = make_loader(OURS, n, 0)
    loader.seek(n // BATCH // 2)  # to have a state there
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    taken = seconds_to_first(OURS, n, 0, state)
    return {"ms": 1e3 * taken, "growth": peak_mb() - before, "state": float(len(json.dumps(state)))}


def far_in_new_interpreter(n: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.resume", str(n)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]


def row(question: str, contestant: str, n: int, workers: int, figures: list[float], unit: str) -> dict[str, Any]:
    return {
        "question": question,
        "contestant": contestant,
        "n": n,
        "workers": workers,
        "value": statistics.median(figures),
        "unit": unit,
        "spread": spread(figures) if min(figures) > 0 else 0.0,
    }


def far_rows(rounds: int) -> Iterator[dict[str, Any]]:
    progress(f"[resume] half-way through {LARGE:,}")
    figures = [far_in_new_interpreter(LARGE) for _ in range(rounds)]
    for question, key, unit in (("first batch", "ms", "ms"), ("growth", "growth", "MB"), ("state", "state", "bytes")):
        yield row(question, OURS, LARGE, 0, [figure[key] for figure in figures], unit)


def targets_of(figures: dict[str, list[float]], workers: int) -> Iterator[Target]:
    to_torchdata = median_ratio(figures[TORCHDATA], figures[OURS])
    what = "torchdata's time to the first batch, as a multiple of ours with a seed"
    yield Target(f"{workers} workers: {what}", 1 if workers else 40, to_torchdata)
    if workers:
        to_fresh = median_ratio(figures[FRESH], figures[OURS])
        yield Target(f"{workers} workers: the time of a fresh start, as a multiple of that to resume", 0.9, to_fresh)


def run(settings: Settings) -> Report:
    n = 10**5 if settings.quick else 10**6
    rows, targets = [], []
    for workers in (0, 2):
        progress(f"[resume] half-way through {n:,} with {workers} workers")
        figures = interleave({name: time_to_first(name, n, workers) for name in MAKE}, settings.repeats)
        for name, own in figures.items():
            rows.append(row("first batch", name, n, workers, [1e3 * figure for figure in own], "ms"))
        targets += targets_of(figures, workers)
    far = list(far_rows(1 if settings.quick else min(settings.repeats, 3)))
    targets.append(Target(f"half-way through {LARGE:,}: 100 ms as a multiple of the time", 1, 100 / far[0]["value"]))
    return Report(rows + far, targets)


if __name__ == "__main__":
    print(json.dumps(measure_far(int(sys.argv[1]))))
