"""How much memory do two forked workers add while they read 1,000,000 dicts, shuffled: from a SharedList, from a list?

Each dict has a path, a label and a box of four numbers. Each contestant runs in an interpreter of its own, with torch
imported. The growth is the largest sum of the proportional set sizes (PSS) of the process and its children during one
epoch, above that of the process before it, with all its data: what the start of the workers takes is included. Pages of
library files are left out, because their share changes with whatever else runs; a second figure includes them. The
forked readers are bare processes that read half of the items each, without a loader: they show what reading alone does.
Beside it: how long packing takes, and how fast items are read at random by one process.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import data as torch_data

import headrace
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.timing import Run, interleave, seconds, spread
from headrace.data.dataset import get_items
from headrace.data.shared_list import SharedList

WORKERS = 2
BATCH = 256
LEAST_SAMPLES_OF_MEMORY = 20
MOST_GROWTH_MB = 40

OURS = "headrace.DataLoader, SharedList"
Epoch = Callable[[Sequence[Any]], Iterator[None]]
"""Reads every item with two forked workers; yields from time to time, the last time before the workers end."""


def make_item(i: int) -> dict[str, Any]:
    return {"path": f"images/{i:07d}.jpg", "label": i % 1000, "box": (i, i + 1, i + 2, i + 3)}


def loader_epoch(loader_class: Any) -> Epoch:
    def epoch(items: Sequence[Any]) -> Iterator[None]:
        loader = loader_class(items, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
        batches = iter(loader)
        for _ in range(len(loader)):
            next(batches)
            yield

    return epoch


def forked_readers(items: Sequence[Any]) -> Iterator[None]:
    """Processes that read their part of a shuffled order, and say so once in a while."""
    order = torch.randperm(len(items)).numpy()
    done, say = os.pipe()
    goodbye, end = os.pipe()
    parts = [order[worker::WORKERS] for worker in range(WORKERS)]
    children = [fork_reader(items, part, say, goodbye, end) for part in parts]
    for _ in range(sum(len(part) // BATCH for part in parts)):
        os.read(done, 1)
        yield
    for descriptor in (end, done, say, goodbye):
        os.close(descriptor)
    for child in children:
        os.waitpid(child, 0)


def fork_reader(items: Sequence[Any], part: Any, say: int, goodbye: int, end: int) -> int:
    child = os.fork()
    if child:
        return child
    os.close(end)
    for i in range(0, len(part) // BATCH * BATCH, BATCH):
        touch(get_items(items, part[i : i + BATCH].tolist()))
        os.write(say, b".")
    os.read(goodbye, 1)  # returns when the parent has seen enough
    os._exit(0)


def touch(items: Sequence[Any]) -> list[Any]:
    """Read every object in these items, as collating them would."""
    return [(item["path"], item["label"], *item["box"]) for item in items]


CONTESTANTS: dict[str, tuple[type, Epoch]] = {
    "torch DataLoader, list": (list, loader_epoch(torch_data.DataLoader)),
    "torch DataLoader, SharedList": (SharedList, loader_epoch(torch_data.DataLoader)),
    "headrace.DataLoader, list": (list, loader_epoch(headrace.DataLoader)),
    OURS: (SharedList, loader_epoch(headrace.DataLoader)),
    "forked readers, list": (list, forked_readers),
    "forked readers, SharedList": (SharedList, forked_readers),
}


def total_pss_mb() -> tuple[float, float]:
    """The memory of this process and its children, pages that several map counted once: in all, and without files."""
    tasks = Path("/proc/self/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    figures = [pss_mb(process) for process in ("self", *children)]
    return sum(figure["Pss:"] for figure in figures), sum(figure["Pss:"] - figure["Pss_File:"] for figure in figures)


def pss_mb(process: str) -> Counter[str]:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return Counter()  # it ended just now
    return Counter({name: int(value) * 1024 / 1e6 for name, value, _ in map(str.split, lines)})


def measure_growth(name: str, n: int) -> dict[str, float]:
    """The memory that one contestant's data takes, and its growth over an epoch, in this process."""
    container, epoch = CONTESTANTS[name]
    list(headrace.DataLoader(SharedList(map(make_item, range(BATCH))), batch_size=BATCH))  # imports what it needs
    gc.collect()
    _, empty = total_pss_mb()
    items = container(map(make_item, range(n)))
    gc.collect()
    before = total_pss_mb()
    seen = [before]
    n_steps = n // BATCH
    every = max(1, n_steps // LEAST_SAMPLES_OF_MEMORY)
    start = time.perf_counter()
    for step, _ in enumerate(epoch(items), 1):
        if step % every == 0 or step >= n_steps - 1:
            seen.append(total_pss_mb())
    elapsed = time.perf_counter() - start
    all_pages, without_files = (max(figures) - figures[0] for figures in zip(*seen, strict=True))
    return {"data": before[1] - empty, "growth": without_files, "with files": all_pages, "seconds": elapsed}


def growth_in_new_interpreter(name: str, n: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.shared_list", name, str(n)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]


def row(question: str, contestant: str, unit: str, figures: list[float]) -> dict[str, Any]:
    value = statistics.median(figures)
    return {"question": question, "contestant": contestant, "value": value, "unit": unit, "spread": spread(figures)}


def memory_rows(n: int, rounds: int) -> list[dict[str, Any]]:
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for round_number in range(rounds):
        for name, own in figures.items():
            progress(f"[shared_list] memory, round {round_number + 1} of {rounds}: {name}")
            own.append(growth_in_new_interpreter(name, n))
    questions = {
        "data": ("data in memory", "MB"),
        "growth": ("growth", "MB"),
        "with files": ("growth, files included", "MB"),
        "seconds": ("epoch", "s"),
    }
    return [
        row(question, name, unit, [figure[key] for figure in own])
        for key, (question, unit) in questions.items()
        for name, own in figures.items()
    ]


def speed_rows(n: int, repeats: int) -> list[dict[str, Any]]:
    """Packing, and reading in one process: against a list, and against the bare unpickling of bytes that lie ready."""
    items = [make_item(i) for i in range(n)]
    shared = SharedList(items)
    pickled = [pickle.dumps(item, 5) for item in items]
    order = random.Random(0).sample(range(n), min(n, 100_000))
    batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]

    def items_per_second(read: Callable[[], object]) -> Run:
        return lambda: len(order) / seconds(read)

    def one_by_one(source: Any) -> Callable[[], object]:
        return lambda: [None for i in order if source[i] is None]

    def unpickle() -> object:
        loads = pickle.loads
        return [None for i in order if loads(pickled[i]) is None]

    reads = {
        "SharedList, item by item": items_per_second(one_by_one(shared)),
        "SharedList, batches of 256": items_per_second(lambda: [None for b in batches if not shared.__getitems__(b)]),
        "list, item by item": items_per_second(one_by_one(items)),
        "limit: pickle.loads of bytes in a list": items_per_second(unpickle),
    }
    packing = interleave({"SharedList": lambda: seconds(lambda: SharedList(items))}, min(repeats, 3))
    rows = [row("packing", name, "s", own) for name, own in packing.items()]
    rows += [row("random reads", name, "items/s", own) for name, own in interleave(reads, repeats).items()]
    return rows


def run(settings: Settings) -> Report:
    n = 100_000 if settings.quick else 1_000_000
    memory = memory_rows(n, 1 if settings.quick else min(settings.repeats, 3))
    rows = memory + speed_rows(n, settings.repeats)
    growth = next(r["value"] for r in memory if (r["question"], r["contestant"]) == ("growth", OURS))
    what = f"{MOST_GROWTH_MB} MB of growth, as a multiple of {OURS}'s"
    return Report(rows, [Target(what, 1, MOST_GROWTH_MB / max(growth, 1.0))])


if __name__ == "__main__":
    print(json.dumps(measure_growth(sys.argv[1], int(sys.argv[2]))))
