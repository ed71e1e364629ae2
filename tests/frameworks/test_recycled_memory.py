"""Memory for batches in one process: what is seen is never handed out again, and what is free is given back."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import DataLoader
from headrace.frameworks import recycled_memory
from headrace.frameworks.recycled_memory import WORTH_RECYCLING, RecycledMemory
from tests.needs import needs_torch

BYTES = np.dtype(np.uint8)
SIZE = 2 * WORTH_RECYCLING
ENGINES = pytest.mark.parametrize("options", [{}, {"num_workers": 2, "engine": "threads"}], ids=["none", "threads"])


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_when_the_last_view_is_gone():
    memory = RecycledMemory()
    first = memory.allocate((4, SIZE // 8), np.dtype(np.float64))
    assert (first.shape, first.dtype, address(first) % 4096) == ((4, SIZE // 8), np.float64, 0)
    place, row = address(first), first[2, 10:20]
    del first
    second = memory.allocate((4 * SIZE,), BYTES)
    assert address(second) != place
    del row
    assert address(memory.allocate((4 * SIZE,), BYTES)) == place


@needs_torch
def test_a_tensor_is_a_view():
    import torch

    memory = RecycledMemory()
    tensor = torch.from_numpy(memory.allocate((SIZE,), BYTES))[5:9].clone().new_tensor([1])  # none of it
    kept = torch.from_numpy(memory.allocate((SIZE,), BYTES))[5:9].detach()
    place = kept.data_ptr() - 5
    assert address(memory.allocate((SIZE,), BYTES)) != place
    del kept, tensor
    assert address(memory.allocate((SIZE,), BYTES)) == place


@pytest.mark.parametrize(("shape", "dtype"), [((), "f8"), ((0, 5), "f8"), ((10,), "i4"), ((WORTH_RECYCLING,), "O")])
def test_small_arrays_and_objects_are_ordinary_memory(shape, dtype):
    memory = RecycledMemory()
    array = memory.allocate(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert not memory._leases


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12)), max_size=60))
def test_nothing_that_is_seen_is_ever_overwritten(steps):
    memory, kept = RecycledMemory(), {}
    for number, (size, drop) in enumerate(steps):
        array = memory.allocate((size * WORTH_RECYCLING // 2 + 7,), BYTES)
        array[::4096] = number % 251
        kept[number] = array[: WORTH_RECYCLING // 4]
        del array
        kept.pop(number - drop, None)
        for earlier, part in kept.items():
            assert (part[::4096] == earlier % 251).all()


def test_a_large_block_is_not_wasted_on_something_small():
    memory = RecycledMemory()
    large = memory.allocate((16 * SIZE,), BYTES)
    place = address(large)
    del large
    assert address(memory.allocate((SIZE,), BYTES)) != place
    assert address(memory.allocate((15 * SIZE,), BYTES)) == place


def test_free_memory_that_nobody_wants_is_given_back():
    memory = RecycledMemory()
    kept = [memory.allocate((SIZE,), BYTES) for _ in range(100)]
    del kept
    memory.allocate((8 * SIZE,), BYTES)
    assert len(memory._free) <= recycled_memory._MOST_FREE
    for _ in range(2 * recycled_memory._STALE):
        memory.allocate((8 * SIZE,), BYTES)
    assert len(memory._free) + len(memory._ended) <= 2


def test_memory_outlives_its_giver_as_long_as_it_is_seen():
    memory = RecycledMemory()
    array = memory.allocate((SIZE,), BYTES)
    array[:] = 7
    free = weakref.ref(memory.allocate((SIZE,), BYTES))
    gone = weakref.ref(memory)
    del memory
    gc.collect()
    assert gone() is None
    assert free() is None
    assert (array == 7).all()


def test_arrays_end_in_any_thread():
    memory, kept = RecycledMemory(), []

    def drop():
        for _ in range(2000):
            if kept:
                kept.pop()

    threads = [threading.Thread(target=drop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(300):
        array = memory.allocate((SIZE,), BYTES)
        array[::4096] = number % 251
        kept.append(array)
        assert (array[::4096] == number % 251).all()
    for thread in threads:
        thread.join()


def _overwrite(memory):
    for _ in range(4):
        memory.allocate((SIZE,), BYTES)[:] = 9


def test_a_forked_child_changes_nothing_here():
    memory = RecycledMemory()
    array = memory.allocate((SIZE,), BYTES)
    array[:] = 5
    child = multiprocessing.get_context("fork").Process(target=_overwrite, args=(memory,))
    child.start()
    child.join()
    assert (array == 5).all()


class Numbered:
    def __getitem__(self, index):
        return np.full(WORTH_RECYCLING // 8, float(index)), index

    def __len__(self):
        return 48


class NumberedInBatches(Numbered):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@ENGINES
@pytest.mark.parametrize("output", ["numpy", pytest.param("torch", marks=needs_torch)])
@pytest.mark.parametrize("dataset", [Numbered(), NumberedInBatches(), np.arange(48.0)[:, None].repeat(2**17, 1)])
def test_batches_that_are_kept_stay_as_they_are(options, output, dataset):
    batches = list(DataLoader(dataset, 4, output=output, **options))
    kept = DataLoader(dataset, 4, output=output, **options)
    some = [batch for i, batch in enumerate(kept) if i % 3 == 0]
    for found, step in ((batches, 1), (some, 3)):
        rows = [batch[0] if isinstance(batch, list) else batch for batch in found]
        assert [np.asarray(row)[:, ::1000].min(1).tolist() for row in rows] == [
            [float(4 * i + k) for k in range(4)] for i in range(0, 12, step)
        ]
        assert all((np.asarray(row)[:, ::997] == np.asarray(row)[:, :1]).all() for row in rows)


def owner_of(array):
    """What the memory of an array belongs to."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


@ENGINES
@pytest.mark.parametrize("dataset", [Numbered(), np.ones((48, 2**18))], ids=["samples", "rows"])
def test_batches_that_are_dropped_serve_the_next_ones(options, dataset):
    owners = {}
    for batch in DataLoader(dataset, 4, output="numpy", **options):
        owner = owner_of(batch[0] if isinstance(batch, list) else batch)
        owners[id(owner)] = owner
        assert isinstance(owner, mmap.mmap)
    assert len(owners) <= 8


def test_copies_of_buffers_may_be_written_to():
    source = np.arange(2**20)
    source.flags.writeable = False
    copied = RecycledMemory().copy(source)
    copied[0] = 9
    assert source[0] == 0
    assert copied[8:].tobytes() == source[1:].tobytes()
