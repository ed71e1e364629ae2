"""How long does the first batch take with two workers, and how long the first one of the next epoch?

Each figure comes from a fresh interpreter that runs a script of its own, whose dataset needs no torch; the script has
imported torch in any case, and compiled bytecode is at hand. The clock runs from `iter(loader)` to the first batch. A
restart is the time from the last batch of an epoch to the first of the next: with new workers (fork), and with
persistent ones; the median of some.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.steady import NOT_SLOWER
from benchmarks.timing import median_ratio, spread

SCRIPT = """
import json
import sys
import time

import numpy as np
import torch

from LIBRARY import DataLoader


class Rows:
    def __getitem__(self, index):
        return np.full(16, index, np.float32)

    def __len__(self):
        return 256


def restart_seconds(loader, n):
    found = []
    last = None
    for _ in range(n + 1):
        for i, batch in enumerate(loader):
            now = time.perf_counter()
            if i == 0 and last is not None:
                found.append(now - last)
            last = now
    return sorted(found)[n // 2]


def main():
    method, restarts = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    options = {"batch_size": 32, "num_workers": 2, "multiprocessing_context": method}
    loader = DataLoader(Rows(), **options)
    start = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    found = {"first batch": time.perf_counter() - start}
    del iterator
    if method == "fork":
        found["restart, new workers"] = restart_seconds(loader, restarts)
        loader = DataLoader(Rows(), persistent_workers=True, **options)
        found["restart, persistent workers"] = restart_seconds(loader, 4 * restarts)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
"""
LIBRARIES = {"torch": "torch.utils.data", "headrace": "headrace"}
METHODS = ("fork", "spawn", "forkserver")
BARS = {"first batch, fork": NOT_SLOWER, "first batch, spawn": 5, "first batch, forkserver": 5}
BAR_OF_RESTART = 2


def run(settings: Settings) -> Report:
    figures: dict[str, dict[str, list[float]]] = {}
    for what, library, seconds in measure(settings):
        figures.setdefault(what, {}).setdefault(library, []).append(seconds)
    rows: list[dict[str, Any]] = []
    targets = []
    for what, own in figures.items():
        ratio = median_ratio(own["torch"], own["headrace"])
        rows.append(
            {
                "time to": what,
                "torch ms": 1000 * statistics.median(own["torch"]),
                "headrace ms": 1000 * statistics.median(own["headrace"]),
                "spread": spread(own["headrace"]),
                "x faster": ratio,
            }
        )
        targets.append(Target(f"{what}, times faster", BARS.get(what, BAR_OF_RESTART), ratio))
    return Report(rows, targets)


def measure(settings: Settings) -> Iterator[tuple[str, str, float]]:
    """What was measured, with which library, and the seconds: round after round."""
    rounds, restarts = (1, 5) if settings.quick else (settings.repeats, 15)
    with tempfile.TemporaryDirectory() as folder:
        scripts = {library: Path(folder, f"with_{library}.py") for library in LIBRARIES}
        for library, path in scripts.items():
            path.write_text(SCRIPT.replace("LIBRARY", LIBRARIES[library]))
        shutil.copytree(Path(headrace.__file__).parent, Path(folder, "headrace"))  # as if it were installed
        run_script(scripts["headrace"], "spawn", restarts)  # writes the bytecode
        for n in range(rounds):
            progress(f"[start_up] round {n + 1}")
            for method in METHODS:
                for library, path in scripts.items():
                    for what, seconds in run_script(path, method, restarts).items():
                        yield (f"{what}, {method}" if what == "first batch" else what), library, seconds


def run_script(path: Path, method: str, restarts: int) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(path.parent)  # the fork server does not look where the script lies
    command = [sys.executable, str(path), method, str(restarts)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found
