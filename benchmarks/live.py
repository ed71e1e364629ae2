"""How old is the newest row of a batch from a live feed, at 100 rows a second? And does anything pile up at 50,000?

A server in a process of its own sends JSON lines over TCP, stamped as they are sent. At 100 rows a second, in batches
of 8: the age of the newest row when the loop has its batch, without workers and with 2. Beside it a bare loop over the
socket, the physical limit; torch's loader over an `IterableDataset` of the same socket, which works without workers
only; and `Stream.from_iterable`, which reads ahead by blocks. At 50,000 rows a second, in batches of 64: how many rows
a second arrive, the age of the newest, and by how much memory grows from the first second to the last.
"""

from __future__ import annotations

import json
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from torch.utils import data as torch_data

import headrace
from benchmarks.report import Report, Settings, Target, progress
from headrace.batch.collate import default_collate

SLOW, FAST = 100, 50_000
MOST_AGE_S = 0.1
MOST_GROWTH_MB = 200

Batches = Callable[[int], Iterator[Any]]
"""Opens a feed at a port, and gives its batches."""


class SocketRows(torch_data.IterableDataset[Any]):
    """The usual way."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __iter__(self) -> Iterator[Any]:
        with closing(socket.create_connection(("127.0.0.1", self._port))) as sock, sock.makefile("rb") as lines:
            for line in lines:
                yield json.loads(line)


def ours(size: int, workers: int) -> Batches:
    def batches(port: int) -> Iterator[Any]:
        stream = headrace.read_live(f"tcp://127.0.0.1:{port}", format="jsonl")
        with headrace.DataLoader(stream, batch_size=size, num_workers=workers) as loader:
            yield from loader

    return batches


def torchs(size: int) -> Batches:
    return lambda port: iter(torch_data.DataLoader(SocketRows(port), batch_size=size))


def blocks(size: int) -> Batches:
    def batches(port: int) -> Iterator[Any]:
        stream = headrace.Stream.from_iterable(SocketRows(port), shard="dispatch", block_rows=64)
        with headrace.DataLoader(stream, batch_size=size) as loader:
            yield from loader

    return batches


def bare(size: int) -> Batches:
    def batches(port: int) -> Iterator[Any]:
        rows = iter(SocketRows(port))
        while True:
            yield default_collate([next(rows) for _ in range(size)])

    return batches


def measure(batches: Batches, rate: int, for_s: float) -> dict[str, Any]:
    """Follow a feed for some seconds."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "tests.live.feed_server", str(port), "--rate", str(rate)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        return follow(batches(port), for_s)
    finally:
        server.kill()
        server.wait()


def follow(batches: Iterator[Any], for_s: float) -> dict[str, Any]:
    ages, n_rows, memory = [], 0, 0.0
    next(batches)
    begun = time.monotonic()
    for batch in batches:
        now = time.monotonic()
        ages.append(now - float(max(batch["sent"])))
        n_rows += len(batch["sent"])
        memory = memory or (memory_mb() if now - begun > min(1.0, for_s / 2) else 0.0)
        if now - begun > for_s:
            break
    grown = memory_mb() - memory
    if hasattr(batches, "close"):
        batches.close()
    return {
        "rows/s": round(n_rows / (now - begun)),
        "median age ms": round(1e3 * statistics.median(ages), 2),
        "p99 age ms": round(1e3 * statistics.quantiles(ages, n=100)[98], 2),
        "last age ms": round(1e3 * ages[-1], 2),
        "growth MB": round(grown, 1),
    }


def memory_mb() -> float:
    """The most that this process has used so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(settings: Settings) -> Report:
    for_s = 3.0 if settings.quick else 10.0
    contestants = {
        SLOW: {
            "headrace.read_live": ours(8, 0),
            "headrace.read_live, 2 workers": ours(8, 2),
            "bare loop over the socket": bare(8),
            "torch, IterableDataset": torchs(8),
            "headrace.Stream.from_iterable, blocks of 64": blocks(8),
        },
        FAST: {
            "headrace.read_live": ours(64, 0),
            "headrace.read_live, 2 workers": ours(64, 2),
            "bare loop over the socket": bare(64),
            "torch, IterableDataset": torchs(64),
        },
    }
    rows, targets = [], []
    for rate, batches_of in contestants.items():
        for who, batches in batches_of.items():
            progress(f"live: {rate:,} rows a second, {who}")
            found = measure(batches, rate, for_s)
            rows.append({"sent rows/s": rate, "contestant": who, **found})
            if not who.startswith("headrace.read_live"):
                continue
            if rate == SLOW:
                what = f"{who}: 0.1 s over the median age of the newest row"
                targets.append(Target(what, 1.0, MOST_AGE_S / (found["median age ms"] / 1e3)))
            else:
                what = f"{who}: {MOST_GROWTH_MB} MB over what memory grows by at {FAST:,} rows a second"
                targets.append(Target(what, 1.0, MOST_GROWTH_MB / max(found["growth MB"], 0.1)))
    return Report(rows, targets)
