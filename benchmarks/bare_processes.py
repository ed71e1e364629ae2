"""The least that processes must do to read Parquet files for another one, which gives out the batches in order."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from headrace.base.world import keep_freed_memory

SLOTS = 16  # so few that they stay in the cache
NICENESS = 2  # as our workers


class BareProcesses:
    """Batches of the columns `id` and `data`, cut within row groups, which the processes take in turn.

    Each copies its bytes once, to a slot of memory that it shares with the loop, and sends their lengths.
    """

    def __init__(self, files: list[Path], batch_size: int, workers: int) -> None:
        self.groups = [(path, group) for path in files for group in range(pq.ParquetFile(path).num_row_groups)]
        self.batch_size = batch_size
        self.workers = workers
        first = pq.ParquetFile(files[0]).read_row_group(0, ["data"])["data"]
        self.slot_bytes = batch_size * max(len(value.as_buffer()) for value in first)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        context = multiprocessing.get_context("fork")
        with ExitStack() as stack:
            sides = []
            for number in range(self.workers):
                memory, free = mmap.mmap(-1, SLOTS * self.slot_bytes), context.Semaphore(SLOTS)
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=self._work, args=(number, memory, free, there))
                process.start()
                there.close()
                stack.callback(process.join)
                stack.callback(process.terminate)
                sides.append((here, memory, free))
            for turn in range(len(self.groups)):
                here, memory, free = sides[turn % self.workers]
                while message := here.recv_bytes():
                    slot, n = struct.unpack_from("<qq", message)
                    numbers = np.frombuffer(message, np.int64, 2 * n, 16)
                    layout = _layout_of(tuple(numbers[n:].tolist()))
                    data = list(layout.unpack_from(memory, slot * self.slot_bytes))
                    free.release()
                    yield {"id": numbers[:n], "data": data}

    def _work(self, number: int, memory: mmap.mmap, free: Any, there: Connection) -> None:
        os.nice(NICENESS)
        keep_freed_memory()
        slot, view = 0, memoryview(memory)
        for path, group in self.groups[number :: self.workers]:
            file = pq.ParquetFile(path, buffer_size=1 << 20)
            for batch in file.iter_batches(self.batch_size, [group], use_threads=False):
                column = batch.column("data")
                _, offsets, values = column.buffers()
                borders = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
                start = slot * self.slot_bytes
                free.acquire()
                view[start : start + borders[-1] - borders[0]] = memoryview(values).cast("B")[borders[0] : borders[-1]]
                numbers = np.concatenate([batch.column("id").to_numpy(), np.diff(borders)])
                there.send_bytes(struct.pack("<qq", slot, len(column)) + numbers.tobytes())
                slot = (slot + 1) % SLOTS
            there.send_bytes(b"")


@lru_cache(16)
def _layout_of(lengths: tuple[int, ...]) -> struct.Struct:
    return struct.Struct("%ds" * len(lengths) % lengths)
