"""What do workers in Ray actors cost next to processes, and how do they compare with Ray Data and torch?

Two workers on one machine, one dataset for all: Python-heavy samples (20 ms), JPEGs of 256 x 256, batches of 38 MB,
small batches, the time to the first batch, and the pause when a worker is killed. Ray Data maps batches with two actors
and gives them by `iter_torch_batches`, prefetching two. Rates are those of an epoch after its first batch, by the wall
clock.
"""

from __future__ import annotations

import logging
import os
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import ray
from torch.utils import data as torch_data

import headrace
from benchmarks.jpeg import Photographs, make_files
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.timing import torch_threads

WORKERS = 2
TORCH, PROCESSES, RAY, RAY_DATA = "torch", "headrace, processes", "headrace, ray", "Ray Data"


class Computed:
    """A loop in Python of about 20 ms a sample."""

    def __init__(self, n: int, rounds: int) -> None:
        self.n, self.rounds = n, rounds

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> np.ndarray:
        total = 0
        for i in range(self.rounds):
            total += (index + i) % 7
        return np.full(64, total, np.float32)


class Filled:
    """Arrays of some numbers; no work to speak of."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size = n, size

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(self.size, index, np.float32)


class SomePhotographs(Photographs):
    def __init__(self, n: int) -> None:
        super().__init__(make_files(64))
        self.n = n

    def __len__(self) -> int:
        return self.n


class FromDataset:
    """What an actor of Ray Data does: the samples of a batch of indices, stacked."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"sample": np.stack([self.dataset[int(index)] for index in batch["id"]])}


def by_ray_data(dataset: Any, batch_size: int) -> Iterable[Any]:
    blocks = max(WORKERS, len(dataset) // batch_size)
    indices = ray.data.range(len(dataset), override_num_blocks=min(blocks, 200))
    made = indices.map_batches(
        FromDataset,
        fn_constructor_args=(dataset,),
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(size=WORKERS),
    )
    batches: Iterable[Any] = made.iter_torch_batches(batch_size=batch_size, prefetch_batches=2)
    return batches


def contestants(dataset: Any, batch_size: int) -> dict[str, Callable[[], Iterable[Any]]]:
    options = {"batch_size": batch_size, "num_workers": WORKERS}
    return {
        TORCH: lambda: torch_data.DataLoader(dataset, **options),
        PROCESSES: lambda: headrace.DataLoader(dataset, **options),
        RAY: lambda: headrace.DataLoader(dataset, **options, engine="ray"),
        RAY_DATA: lambda: by_ray_data(dataset, batch_size),
    }


def epoch_of(make: Callable[[], Iterable[Any]], batch_size: int) -> tuple[float, float]:
    """Samples per second after the first batch, and seconds to the first batch."""
    begun = time.perf_counter()
    batches = iter(make())
    next(batches)
    first = time.perf_counter()
    n = sum(1 for _ in batches)
    return n * batch_size / (time.perf_counter() - first), first - begun


CASES: dict[str, tuple[Callable[[int], Any], int, int]] = {  # the dataset of n samples, batch size, batches
    "python, 20 ms": (lambda n: Computed(n, rounds_of(20e-3)), 8, 24),
    "jpeg": (SomePhotographs, 32, 60),
    "38 MB batches": (lambda n: Filled(n, 300_000), 32, 60),
    "small batches": (lambda n: Filled(n, 16), 8, 4000),
}


def rounds_of(seconds: float) -> int:
    n = 100_000
    dataset = Computed(1, n)
    fastest = min(_timed(lambda: dataset[0]) for _ in range(5))
    return round(seconds / fastest * n)


def _timed(fn: Callable[[], object]) -> float:
    begun = time.thread_time()
    fn()
    return time.thread_time() - begun


def pause_after_kill(engine: str) -> float:
    """The longest wait for a batch in an epoch in which a worker is killed, in seconds."""
    dataset = Computed(400, rounds_of(2e-3))
    loader = headrace.DataLoader(dataset, 8, num_workers=WORKERS, engine=engine, on_worker_death="restart")
    waits, iterator = [], iter(loader)
    for number in range(len(loader)):
        asked = time.perf_counter()
        next(iterator)
        waits.append(time.perf_counter() - asked)
        if number == 20:
            os.kill(_a_worker(iterator, engine), signal.SIGKILL)
    return max(waits[20:])


def _a_worker(iterator: Any, engine: str) -> int:
    made = iterator._batches._engine
    if engine == "processes":
        return int(made.pids()[0])
    return int(next(iter(made._dispatcher._members.values())).place.pid)


def run(settings: Settings) -> Report:
    warnings.simplefilter("ignore")
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(address="local", num_cpus=6, include_dashboard=False, log_to_driver=False, object_store_memory=2**31)
    ray.data.DataContext.get_current().enable_progress_bars = False
    with torch_threads(1):
        rows = [row for name in CASES for row in rows_of(name, settings)]
    pauses = {engine: [pause_after_kill(engine) for _ in range(settings.repeats)] for engine in ("processes", "ray")}
    rows.append(
        {
            "case": "pause after a kill, s",
            TORCH: "",
            PROCESSES: statistics.median(pauses["processes"]),
            RAY: statistics.median(pauses["ray"]),
            RAY_DATA: "",
        }
    )
    ray.shutdown()
    return Report(rows, list(targets(rows)))


def rows_of(name: str, settings: Settings) -> Iterator[dict[str, Any]]:
    make, batch_size, n_batches = CASES[name]
    dataset = make(batch_size * (n_batches // 2 if settings.quick else n_batches))
    figures: dict[str, list[tuple[float, float]]] = {}
    for _ in range(settings.repeats):
        for contestant, loader in contestants(dataset, batch_size).items():
            progress(f"[ray_workers] {name}, {contestant}")
            figures.setdefault(contestant, []).append(epoch_of(loader, batch_size))
    for part, what in enumerate(("samples/s", "s to the first batch")):
        medians = {who: statistics.median(pair[part] for pair in pairs) for who, pairs in figures.items()}
        yield {"case": f"{name}, {what}", **medians}


def targets(rows: list[dict[str, Any]]) -> Iterator[Target]:
    rates = {row["case"]: row for row in rows if row["case"].endswith("samples/s")}
    for name in ("python, 20 ms", "jpeg"):
        row = rates[f"{name}, samples/s"]
        yield Target(f"{name}: of our processes", 0.9, row[RAY] / row[PROCESSES])
    yield Target("times Ray Data's samples/s, the least", 2.0, min(row[RAY] / row[RAY_DATA] for row in rates.values()))
    firsts = [row for row in rows if row["case"].endswith("first batch")]
    yield Target("times sooner than Ray Data's first batch, the least", 2.0, min(r[RAY_DATA] / r[RAY] for r in firsts))
