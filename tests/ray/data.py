"""Datasets that actors can import, and what becomes of loaders on Ray."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import numpy as np

from headrace import Dataset, IterableDataset, get_worker_info


class Slow(Dataset):
    """Numbers with draws of the global generators; each takes a moment."""

    def __init__(self, n=120, seconds=0.005):
        self.n = n
        self.seconds = seconds

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return {"index": index, "python": random.random(), "numpy": np.random.rand(3)}


class Wide(Dataset):
    """Samples of some bytes."""

    def __init__(self, n, n_bytes, seconds=0.0):
        self.n, self.n_bytes, self.seconds = n, n_bytes, seconds

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return np.full(self.n_bytes, index % 251, np.uint8)


class Part(IterableDataset):
    """Each worker's part of n numbers, with a draw."""

    def __init__(self, n, seconds=0.002):
        self.n = n
        self.seconds = seconds

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, self.n, info.num_workers):
            time.sleep(self.seconds)
            yield number, random.random()


class Deadly(Dataset):
    """Kills its worker at some samples: always, or as long as a file has fewer lines than `times`."""

    def __init__(self, n, deadly, folder=None, times=0):
        self.n, self.deadly, self.folder, self.times = n, deadly, folder, times

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index in self.deadly:
            if self.folder is None:
                os._exit(3)
            path = Path(self.folder) / "deaths"
            with path.open("a") as file:
                file.write(f"{index}\n")
            if len(path.read_text().splitlines()) <= self.times:
                os._exit(3)
        return index


class Stuck(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(1000 if index == 2 else 0)
        return index


def plain(batch):
    """A batch as plain values, to compare."""
    if isinstance(batch, dict):
        return {name: plain(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def pid_of_workers(loader):
    """The actors of a loader that runs with persistent workers, or in the middle of an epoch."""
    dispatcher = engine_of(loader)._dispatcher
    return [member.place.pid for member in list(dispatcher._members.values()) if member.place is not None]


def kill_workers(loader, n):
    """Kill up to n actors that are alive: one that died a moment ago may still be listed. Return how many."""
    killed = 0
    for pid in pid_of_workers(loader):
        if killed < n:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


def engine_of(iterator):
    iterator.begin_now()
    return iterator._batches._engine
