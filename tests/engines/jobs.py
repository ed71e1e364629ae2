"""Jobs for engines, and datasets that worker processes can import without pytest."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from headrace import IterableDataset, get_worker_info
from headrace.base.messages import Task, decoded
from headrace.engines import launch
from headrace.engines.engine import Job
from headrace.engines.inline import InlineEngine
from headrace.engines.processes import ProcessEngine
from headrace.engines.threads import ThreadEngine
from headrace.testing import HandDrivenEngine

START_METHODS = ["fork", "forkserver", "spawn"]


def start_helpers_of_multiprocessing():
    """The resource tracker, the fork server and the first shared value keep descriptors open until the end."""
    resource_tracker.ensure_running()
    multiprocessing.Value("i", 0)
    launch._preload(multiprocessing.get_context("forkserver"))
    forkserver.ensure_running()


def processes(start_method, workers=2, prefetch_factor=2, **options):
    return ProcessEngine(workers, prefetch_factor, context=multiprocessing.get_context(start_method), **options)


IN_PROCESS = {
    "inline": InlineEngine,
    "oldest first": lambda: HandDrivenEngine(min, capacity=3),
    "newest first": lambda: HandDrivenEngine(max, capacity=3),
}
AHEAD = {
    "threads": lambda **options: ThreadEngine(**{"workers": 2, "prefetch_factor": 2, **options}),
    "fork": lambda **options: processes("fork", **options),
    "forkserver": lambda **options: processes("forkserver", **options),
    "spawn": lambda **options: processes("spawn", **options),
}
ENGINES = {**IN_PROCESS, **AHEAD}


def job(dataset, **options):
    return Job(
        **{
            "dataset": dataset,
            "iterable": False,
            "batched": True,
            "drop_last": False,
            "collate_fn": list,
            "output": "numpy",
            "convert": False,
            **options,
        }
    )


def run(engine, keys):
    """All outcomes, with as many tasks in flight as the engine allows, dealt to the workers in turn."""
    waiting, in_flight = [Task(n, key, n % engine.workers) for n, key in enumerate(keys)], 0
    while waiting or in_flight:
        while waiting and in_flight < engine.capacity:
            engine.submit(waiting.pop(0))
            in_flight += 1
        yield decoded(engine.receive())
        in_flight -= 1


class WhoAmI:
    """Each sample tells which worker made it, and where."""

    mark = "untouched"

    def __getitem__(self, index):
        info = get_worker_info()
        if info is None:
            return None
        assert info.dataset is self
        return info.id, info.num_workers, info.seed, os.getpid(), self.mark


class Uneven(IterableDataset):
    """Worker k has so many samples; without workers it is worker 0."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __iter__(self):
        info = get_worker_info()
        number = 0 if info is None else info.id
        return iter([(number, i) for i in range(self.lengths[number])])


class Gated:
    """Waits in every sample until a file is there, and tells by files that it has begun."""

    def __init__(self, folder):
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / f"begun-{index}").touch()
        wait_for(self.folder / "open")
        return index


def wait_for(path: Path, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.002)


def fails_to_start(number):
    raise LookupError(f"worker {number} has no licence")


def mark_dataset(number):
    get_worker_info().dataset.mark = f"marked by {number}"


class Unstartable(IterableDataset):
    def __iter__(self):
        raise OSError("no such stream")
