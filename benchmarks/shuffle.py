"""What does a shuffle by position cost next to torch's: until the first batch, in memory, and over a whole pass?

The first batch of 256 comes from samplers alone, in a fresh interpreter each, with torch imported; memory is the growth
of the process's peak until then. A pass reads all batches of 256: torch's as its DataLoader does, from a BatchSampler
over a RandomSampler; headrace's permutation batch by batch, and in chunks that are cut into batches. NumPy's stored
permutation, cut alike, is there as the least that a shuffle in memory takes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils import data as torch_data

from benchmarks.memory import peak_mb
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.timing import Run, exhaust, interleave, median_ratio, seconds, spread
from headrace import RandomSampler
from headrace.order.permutation import Permutation

BATCH = 256
CHUNK = 2**16
OURS = "headrace, by position"
TORCH = "torch RandomSampler"
IN_CHUNKS = "headrace, in chunks of 65536"
BY_BATCH = "headrace, batch by batch"


def first_by_position(n: int) -> list[int]:
    order = RandomSampler(range(n)).seeded(0, 0)
    assert order is not None
    return order.at(np.arange(BATCH)).tolist()


def first_of_torch(n: int) -> list[int]:
    return next(iter(torch_data.BatchSampler(torch_data.RandomSampler(range(n)), BATCH, False)))


FIRST: dict[str, Callable[[int], list[int]]] = {OURS: first_by_position, TORCH: first_of_torch}


def measure_first(name: str, n: int) -> dict[str, float]:
    FIRST[name](1000)
    before, start = peak_mb(), time.perf_counter()
    assert len(FIRST[name](n)) == BATCH
    return {"seconds": time.perf_counter() - start, "growth": peak_mb() - before}


def first_in_new_interpreter(name: str, n: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.shuffle", name, str(n)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]


def row(question: str, contestant: str, n: int, value: float, unit: str, spread_: float) -> dict[str, Any]:
    return {"question": question, "contestant": contestant, "n": n, "value": value, "unit": unit, "spread": spread_}


def first_rows(sizes: list[tuple[str, int]], rounds: int) -> Iterator[dict[str, Any]]:
    for name, n in sizes:
        progress(f"[shuffle] first batch of {n:,}: {name}")
        figures = [first_in_new_interpreter(name, n) for _ in range(rounds)]
        for question, key, unit, scale in (("first batch", "seconds", "ms", 1e3), ("growth", "growth", "MB", 1.0)):
            own = [scale * figure[key] for figure in figures]
            yield row(question, name, n, statistics.median(own), unit, spread(own) if min(own) > 0 else 0.0)


def stored_batches(n: int) -> Iterator[Any]:
    order = np.random.default_rng(0).permutation(n)
    return (order[start : start + BATCH] for start in range(0, n, BATCH))


def batches_by_batch(n: int) -> Iterator[Any]:
    order = Permutation(n, key=1)
    return (order.at(np.arange(start, min(start + BATCH, n))) for start in range(0, n, BATCH))


def batches_in_chunks(n: int) -> Iterator[Any]:
    order = Permutation(n, key=1)
    for start in range(0, n, CHUNK):
        chunk = order.at(np.arange(start, min(start + CHUNK, n)))
        yield from (chunk[i : i + BATCH] for i in range(0, len(chunk), BATCH))


def torch_batches(n: int) -> Iterator[Any]:
    return iter(torch_data.BatchSampler(torch_data.RandomSampler(range(n)), BATCH, False))


PASSES: dict[str, Callable[[int], Iterator[Any]]] = {
    TORCH: torch_batches,
    BY_BATCH: batches_by_batch,
    IN_CHUNKS: batches_in_chunks,
    "limit: a permutation stored by NumPy": stored_batches,
}


def indices_per_second(batches: Callable[[int], Iterator[Any]], n: int) -> Run:
    return lambda: n / seconds(lambda: exhaust(batches(n)))


def run(settings: Settings) -> Report:
    large = 10**7 if settings.quick else 10**8
    sizes = [(OURS, 10**7), (OURS, 10**9), (OURS, 10**12), (TORCH, large // 10), (TORCH, large)]
    rows = list(first_rows(sizes, 1 if settings.quick else min(settings.repeats, 3)))
    n = 10**6 if settings.quick else 10**7
    figures = interleave({name: indices_per_second(batches, n) for name, batches in PASSES.items()}, settings.repeats)
    rows += [row("pass", name, n, statistics.median(own), "indices/s", spread(own)) for name, own in figures.items()]
    targets = [
        Target(f"{name}, as a multiple of torch's indices per second", 1, median_ratio(figures[name], figures[TORCH]))
        for name in (BY_BATCH, IN_CHUNKS)
    ]
    return Report(rows, targets)


if __name__ == "__main__":
    print(json.dumps(measure_first(sys.argv[1], int(sys.argv[2]))))
