"""Pages of batches are locked once, stay mapped while they are locked, and are unlocked in the end."""

from __future__ import annotations

import gc
import mmap
import os
import weakref

import numpy as np
import pytest

from headrace.frameworks import page_locks
from headrace.frameworks.page_locks import PageLocks, announce
from headrace.frameworks.recycled_memory import RecycledMemory
from headrace.transport.shared_memory import LoaderArena, WorkerArena, create_segment

PAGE = mmap.PAGESIZE
SIZE = 64 * PAGE


class System:
    """Notes what is locked, and refuses when it is told to."""

    def __init__(self):
        self.locked = {}
        self.log = []
        self.refuses = False

    def register(self, address, n_bytes):
        self.log.append(("lock", address, n_bytes))
        if self.refuses:
            return False
        assert address not in self.locked
        self.locked[address] = n_bytes
        return True

    def unregister(self, address):
        np.frombuffer((np.ctypeslib.ctypes.c_char * PAGE).from_address(address))  # it is still mapped
        self.log.append(("unlock", address))
        del self.locked[address]


@pytest.fixture
def system():
    return System()


@pytest.fixture
def locks(system):
    made = PageLocks(system.register, system.unregister)
    yield made
    made.close()
    assert not system.locked


def address(array):
    return array.__array_interface__["data"][0]


def test_a_block_is_locked_once(locks, system):
    array = RecycledMemory().allocate((2**21,), np.dtype(np.uint8))
    for _ in range(3):
        locks.begin_batch()
        assert locks.lock(address(array), array.nbytes - 5)
    assert system.log == [("lock", address(array), 2**21)]


def test_a_block_that_serves_a_larger_batch_is_locked_anew(locks, system):
    memory = mmap.mmap(-1, SIZE)
    announce(memory)
    start = address(np.frombuffer(memory, np.uint8))
    assert locks.lock(start, 16 * PAGE)
    assert locks.lock(start, 15 * PAGE)
    assert locks.lock(start, 32 * PAGE)
    assert system.log == [("lock", start, 16 * PAGE), ("unlock", start), ("lock", start, 32 * PAGE)]


def test_only_memory_of_batches_is_locked(locks, system):
    memory = mmap.mmap(-1, SIZE)
    start = address(np.frombuffer(memory, np.uint8))
    assert not locks.lock(start, SIZE)  # not announced
    announce(memory)
    assert not locks.lock(start, 100)  # small
    assert not locks.lock(start + 8, SIZE // 2)  # not on a page of its own
    assert not locks.lock(start, SIZE + 1)  # beyond the end
    assert not system.log
    assert locks.lock(start + 4 * PAGE, SIZE // 2)


def test_memory_that_is_gone_is_not_locked(locks, system):
    memory = mmap.mmap(-1, SIZE)
    announce(memory)
    start = address(np.frombuffer(memory, np.uint8))
    del memory
    gc.collect()
    assert not locks.lock(start, SIZE)
    assert not system.log


def test_a_system_that_refuses_is_asked_once(locks, system):
    memory = mmap.mmap(-1, SIZE)
    announce(memory)
    start = address(np.frombuffer(memory, np.uint8))
    system.refuses = True
    for _ in range(3):
        assert not locks.lock(start, SIZE)
    assert len(system.log) == 1


def test_memory_stays_mapped_until_it_is_unlocked(system):
    locks = PageLocks(system.register, system.unregister)
    memory = mmap.mmap(-1, SIZE)
    announce(memory)
    seen, start = weakref.ref(memory), address(np.frombuffer(memory, np.uint8))
    assert locks.lock(start, SIZE)
    del memory
    gc.collect()
    assert seen() is not None
    locks.close()
    assert system.log[-1] == ("unlock", start)
    assert seen() is None


def test_what_no_batch_used_for_a_while_is_unlocked(locks, system):
    memories = [mmap.mmap(-1, SIZE) for _ in range(2)]
    starts = []
    for memory in memories:
        announce(memory)
        starts.append(address(np.frombuffer(memory, np.uint8)))
        locks.begin_batch()
        assert locks.lock(starts[-1], SIZE)
    for _ in range(2 * page_locks._UNUSED):
        locks.begin_batch()
        assert locks.lock(starts[1], SIZE)
    assert list(system.locked) == [starts[1]]


def test_pages_that_are_locked_are_not_given_back(locks):
    fd, size = create_segment(1)[0], 2**24
    worker, loader = WorkerArena(fd, size), LoaderArena(fd, size, size)
    leases = []
    for value in (1, 2, 3):
        array = worker.allocate((2**20,), np.dtype(np.uint8))
        array[:] = value
        leases.append(loader.lease(worker.send(memoryview(array))))
    assert locks.lock(address(leases[1]), 2**20)
    del leases[1], array, worker
    loader.retire()
    kept = np.frombuffer(loader._memory, np.uint8)
    assert (leases[1] == 3).all()
    assert np.count_nonzero(kept == 2) >= 2**20  # locked, though nobody sees it
    locks.close()
    loader.retire()
    assert np.count_nonzero(kept == 2) < 2**20
    os.close(fd)
