"""Batches of workers that users keep and drop as they like: never overwritten, and memory stays flat."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import re
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from headrace import DataLoader
from tests.needs import HAS_TORCH
from tests.transport.mixed import KINDS, LOOSE_KINDS, Mixed, Record, floats, pixels, size_of


def check(batch, number, kind, size):
    """Whether the batch is what its number says; None stands for samples that were not collated."""
    n_bytes = size_of(number)
    match kind:
        case "floats":
            same(batch, floats(number, n_bytes).reshape(1, -1), size)
        case "bytes of pixels":
            same(batch, pixels(number, n_bytes), size)
        case "pair":
            same(batch[0], pixels(number, n_bytes), size)
            assert np.asarray(batch[1]).ravel().tolist() == [number] * (size or 1)
        case "fields":
            same(batch["x"], floats(number, n_bytes), size)
            assert np.asarray(batch["y"]).ravel().tolist() == [number] * (size or 1)
            assert batch["name"] == ([f"number {number}"] * size if size else f"number {number}")
        case "text":
            text = f"{number:_>{min(n_bytes, 100_000)}}"
            assert batch == ([text] * size if size else text)
        case "tensor":
            same(batch, np.full(-(-n_bytes // 4), number % 1000, np.float32), size)
        case "raw bytes":
            assert batch == bytes([number % 251]) * n_bytes
        case "record":
            assert type(batch) is Record
            assert batch.number == number
            same(batch.array, pixels(number, n_bytes), None)
        case "nested":
            ((told, (array, deep)),) = batch
            assert told == number
            same(array, pixels(number, n_bytes), None)
            same(deep["deep"], floats(number, n_bytes // 2), None)
        case "numbers":
            assert batch == [number] * min(n_bytes, 20_000)


def same(array, expected, size):
    array = np.asarray(array)
    assert array.dtype == expected.dtype
    assert array.shape == ((size, *expected.shape) if size else expected.shape)
    for row in array if size else [array]:
        assert np.array_equal(row, expected)


def arrays_of(value):
    """All arrays in a batch."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_of(item)
    elif isinstance(value, dict):
        yield from arrays_of(list(value.values()))
    elif isinstance(value, Record):
        yield value.array
    elif hasattr(value, "shape") and value.ndim:
        yield value


class Keeper:
    """A user who keeps the last 50 batches, single rows of many, and all small fields."""

    def __init__(self, dataset, size, seed):
        self.dataset = dataset
        self.size = size
        self.random = random.Random(seed)
        self.last = deque()
        self.rows = deque(maxlen=20)
        self.small = []

    def take(self, number, batch):
        check(batch, number, self.dataset.kind_of(number), self.size)
        arrays = list(arrays_of(batch))
        if arrays and self.random.random() < 0.1:
            row = self.random.choice(arrays)[-1:]
            self.rows.append((row, np.asarray(row).copy()))
        if isinstance(batch, dict):
            self.small.append((number, batch["y"]))
        if self.random.random() < 0.5:
            self.last.append((number, batch))
        if len(self.last) > 50:
            self.let_go(self.random.randrange(len(self.last)))

    def let_go(self, place):
        number, batch = self.last[place]
        check(batch, number, self.dataset.kind_of(number), self.size)  # still what it was
        del self.last[place]

    def check_all(self):
        for number, batch in self.last:
            check(batch, number, self.dataset.kind_of(number), self.size)
        for row, copy in self.rows:
            assert np.array_equal(np.asarray(row), copy)
        for number, value in self.small:
            assert set(np.asarray(value).ravel().tolist()) == {number}


def resources():
    """MB of ordinary memory in all processes, MB of shared memory, and open descriptors."""
    anonymous, shared = 0, 0
    for pid in [os.getpid(), *[child.pid for child in multiprocessing.active_children()]]:
        status = Path(f"/proc/{pid}/status").read_text()
        anonymous += int(re.search(r"RssAnon:\s+(\d+)", status)[1])
    for child in multiprocessing.active_children():
        folder = Path(f"/proc/{child.pid}/fd")
        found = {}
        for link in folder.iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(link) == "/memfd:headrace (deleted)":
                    stat = link.stat()
                    found[stat.st_ino] = stat.st_blocks * 512
        shared += sum(found.values())
    return np.array([anonymous / 1024, shared / 2**20, len(os.listdir("/proc/self/fd"))])


def drive(loader, dataset, size, keeper, measured, *, epochs=1):
    for _ in range(epochs):
        number = -1
        for number, batch in enumerate(loader):
            keeper.take(number, batch)
            if number % 100 == 0:
                measured.append(resources())
            del batch
        assert number == dataset.batches - 1
        keeper.check_all()


def assert_flat(measured, *, warm_up):
    """The highest after warm-up is not much above the highest within it."""
    early = np.max(list(islice(measured, warm_up)), axis=0)
    late = np.max(list(islice(measured, warm_up, None)), axis=0)
    assert late[0] <= early[0] * 1.15 + 40, f"memory went from {early[0]:.0f} to {late[0]:.0f} MB"
    assert late[1] <= early[1] * 1.25 + 32, f"shared memory went from {early[1]:.0f} to {late[1]:.0f} MB"
    assert late[2] <= early[2], f"descriptors went from {early[2]:.0f} to {late[2]:.0f}"


def kinds(names):
    return [name for name in names if HAS_TORCH or name != "tensor"]


def loader_of(dataset, size, start_method, **options):
    return DataLoader(
        dataset, batch_size=size, num_workers=2, multiprocessing_context=start_method, prefetch_factor=3, **options
    )


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("size", [2, None])
def test_ten_thousand_batches_kept_and_dropped_at_random(size):
    """Five thousand that are collated into the arena, and as many of all types that are pickled into it."""
    dataset = Mixed(5000, size or 1, kinds(KINDS if size else LOOSE_KINDS))
    keeper, measured = Keeper(dataset, size, seed=1), []
    loader = loader_of(dataset, size, "fork")
    drive(loader, dataset, size, keeper, measured)
    assert_flat(measured, warm_up=15)
    assert len(keeper.last) == 50
    del loader
    gc.collect()
    assert not multiprocessing.active_children()
    keeper.check_all()  # kept batches outlive their workers


@pytest.mark.parametrize("size", [2, None])
def test_workers_that_were_spawned(size):
    dataset = Mixed(500, size or 1, kinds(KINDS if size else LOOSE_KINDS))
    keeper, measured = Keeper(dataset, size, seed=2), []
    drive(loader_of(dataset, size, "spawn"), dataset, size, keeper, measured)
    assert_flat(measured, warm_up=3)


def test_persistent_workers_over_many_epochs():
    dataset = Mixed(200, 2, kinds(KINDS))
    keeper, measured = Keeper(dataset, 2, seed=3), []
    loader = loader_of(dataset, 2, "forkserver", persistent_workers=True)
    drive(loader, dataset, 2, keeper, measured, epochs=6)
    assert_flat(measured, warm_up=6)
    loader.close()
    keeper.check_all()


def test_batches_of_workers_that_are_gone_give_their_memory_back_one_by_one():
    """Of each of ten epochs one batch of a few kilobytes is kept; its workers' arenas are not."""
    dataset = Mixed(40, 2, ["floats"])
    kept = []
    before = mapped_bytes()
    for _ in range(10):
        for number, batch in enumerate(loader_of(dataset, 2, "fork")):
            if number == 7:
                kept.append((number, batch))
        del batch
    gc.collect()
    assert mapped_bytes() - before <= 10 * (2 * size_of(7) + 2**17)
    for number, batch in kept:
        check(batch, number, "floats", 2)


def mapped_bytes():
    """Pages of shared memory that this process sees."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"RssShmem:\s+(\d+)", status)[1]) * 1024


def test_a_batch_can_be_changed_by_whoever_holds_it():
    dataset = Mixed(40, 2, ["bytes of pixels"])
    kept = []
    for number, batch in enumerate(loader_of(dataset, 2, "fork")):
        check(batch, number, "bytes of pixels", 2)
        batch[:] = 255 - number
        kept.append((number, batch))
        for earlier, changed in kept:
            assert (np.asarray(changed) == 255 - earlier).all()
        kept = kept[-10:]
