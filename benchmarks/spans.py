"""What do spans cost: the same loaders with and without them, in CPU time per batch of the loop and all its workers?

CPU time is counted because the machine's other programs change it least. Both loaders run side by side, in turns of
a twentieth of a second, hundreds of times. Batches of arrays in memory are the quickest there are; samples made in
Python are the ordinary case.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.steady import ENDLESS
from benchmarks.timing import exhaust

BATCH = 256
TURN_S = 0.05
WARM_BATCHES = 2_000  # until the pace of timing is found


class PythonSamples(headrace.Dataset[Any]):
    """A kilobyte each, and some Python code: ten or twenty microseconds."""

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> Any:
        total = 0
        for i in range(200):
            total += i * index
        return np.full(256, total % 7, np.float32), index


class Row(headrace.Dataset[Any]):
    """Endless, and whole batches at once."""

    rows = np.zeros((2**16, 16), np.float32)

    def __len__(self) -> int:
        return ENDLESS

    def take(self, indices: Any) -> Any:
        return self.rows.take(indices, 0, mode="wrap")


def run(settings: Settings) -> Report:
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "arrays in memory, no workers": (Row(), {"batch_size": BATCH}),
        "arrays in memory, 2 workers": (Row(), {"batch_size": BATCH, "num_workers": 2}),
        "arrays in memory, 2 threads": (Row(), {"batch_size": BATCH, "num_workers": 2, "engine": "threads"}),
        "Python samples, 32, no workers": (PythonSamples(), {"batch_size": 32}),
        "Python samples, 32, 2 workers": (PythonSamples(), {"batch_size": 32, "num_workers": 2}),
        "Python samples, 256, 2 workers": (PythonSamples(), {"batch_size": 256, "num_workers": 2}),
    }
    rows = []
    for name, (dataset, options) in cases.items():
        progress(f"[spans] {name}")
        rows.append({"loader": name, **compare(dataset, options, 20 if settings.quick else 40 * settings.repeats)})
    targets = [
        Target(f"without spans against with them: {row['loader']}", 0.99, 1 / row["with / without"])
        for row in rows
        if row["µs of CPU per batch"] >= 400
    ]
    return Report(rows, targets)


def compare(dataset: Any, options: dict[str, Any], turns: int) -> dict[str, Any]:
    """Of all turns, the tenth that was disturbed least; which of the two loaders comes first alternates."""
    loops = [Loop(dataset, options, is_timed=is_timed) for is_timed in (True, False)]
    n = max(loop.batches_in(TURN_S) for loop in loops)
    figures: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(turns):
        for loop in loops if turn % 2 else loops[::-1]:
            figures[loop.is_timed].append(loop.cpu_of(n))
    for loop in loops:
        loop.close()
    timed, plain = (statistics.mean(sorted(figures[kind])[: max(turns // 10, 1)]) for kind in (True, False))
    return {"µs of CPU per batch": 1e6 * plain, "with / without": timed / plain}


class Loop:
    """A loader in the middle of an epoch."""

    def __init__(self, dataset: Any, options: dict[str, Any], *, is_timed: bool) -> None:
        self.is_timed = is_timed
        self._loader = headrace.DataLoader(dataset, output="numpy", **options)
        self._loader._recorder.is_on = is_timed
        others = set(multiprocessing.active_children())
        self._batches = iter(self._loader)
        exhaust(islice(self._batches, WARM_BATCHES))
        workers = set(multiprocessing.active_children()) - others
        self._clocks = [Path(f"/proc/{worker.pid}/schedstat") for worker in workers]

    def batches_in(self, seconds: float) -> int:
        """How many come in that time, about."""
        begun = time.perf_counter()
        exhaust(islice(self._batches, 100))
        return max(round(100 * seconds / (time.perf_counter() - begun)), 1)

    def cpu_of(self, n: int) -> float:
        """Seconds of the loop and its workers for each of the next n batches."""
        before = self._cpu_seconds()
        exhaust(islice(self._batches, n))
        time.sleep(TURN_S / 5)  # the workers finish what they have been asked for
        return (self._cpu_seconds() - before) / n

    def _cpu_seconds(self) -> float:
        return time.process_time() + sum(int(clock.read_text().split()[0]) for clock in self._clocks) * 1e-9

    def close(self) -> None:
        self._loader.close()
