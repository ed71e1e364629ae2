"""Page-locks the memory that batches are born in, so that a device copies straight from there."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_WORTH_LOCKING = 2**15  # bytes; what is smaller is copied in less time
_UNUSED = 64  # batches after which memory that none of them lay in is unlocked


class _Mapping(NamedTuple):
    start: int
    size: int
    memory: weakref.ref[mmap.mmap]


_mappings: list[_Mapping] = []  # by their start
_guard = threading.Lock()


def _renew_guard() -> None:
    """In a forked child: the thread that held it may be gone."""
    global _guard
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_guard)


def announce(memory: mmap.mmap) -> None:
    """Batches will lie in this memory: large arrays begin on a page, and share none with others."""
    start: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    with _guard:
        _mappings[:] = [mapping for mapping in _mappings if mapping.memory() is not None]
        insort(_mappings, _Mapping(start, len(memory), weakref.ref(memory)), key=lambda mapping: mapping.start)


def _mapping_of(address: int, n_bytes: int) -> mmap.mmap | None:
    with _guard:
        i = bisect_right(_mappings, address, key=lambda mapping: mapping.start)
        if i == 0:
            return None
        mapping = _mappings[i - 1]
        return mapping.memory() if address + n_bytes <= mapping.start + mapping.size else None


class _Locked(NamedTuple):
    n_bytes: int
    memory: mmap.mmap  # stays mapped until it is unlocked
    used: int  # by which batch, last


class PageLocks:
    """Memory of batches that is page-locked, each block once.

    Guarantees: what is locked stays mapped until it is unlocked. It is unlocked by `close`, and when no batch has used
    it for a while; the two batches that were used last, never before `close`. For one thread.

    Args:
        register: gets an address and a size in bytes, and says whether these pages are locked now.
        unregister: gets the address of pages to be unlocked.
    """

    def __init__(self, register: Callable[[int, int], bool], unregister: Callable[[int], None]) -> None:
        self._register = register
        self._unregister = unregister
        self._locked: OrderedDict[int, _Locked] = OrderedDict()  # by address; those that were used last, last
        self._n_batches = 0
        self._is_refused = False
        with _guard:
            _all_locks[:] = [locks for locks in _all_locks if locks() is not None]
            _all_locks.append(weakref.ref(self))

    def begin_batch(self) -> None:
        """Another batch comes: memory that was not used for a while is unlocked."""
        self._n_batches += 1
        while self._locked:
            address, locked = next(iter(self._locked.items()))
            if locked.used >= self._n_batches - _UNUSED:
                return
            self._unlock(address)

    def lock(self, address: int, n_bytes: int) -> bool:
        """Whether these bytes of a batch are page-locked now; not if they lie elsewhere, or if the system refuses."""
        if n_bytes < _WORTH_LOCKING or address % mmap.PAGESIZE or self._is_refused:
            return False
        known = self._locked.get(address)
        if known is not None and n_bytes <= known.n_bytes:
            self._locked[address] = known._replace(used=self._n_batches)
            self._locked.move_to_end(address)
            return True
        n_bytes = -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = _mapping_of(address, n_bytes)
        if memory is None:
            return False
        if known is not None:  # the batch that lay there before was smaller, and is gone
            self._unlock(address)
        if not self._register(address, n_bytes):
            self._is_refused = True  # it would be refused again and again
            return False
        self._locked[address] = _Locked(n_bytes, memory, self._n_batches)
        return True

    def close(self) -> None:
        """Unlock everything. No copy may be under way."""
        for address in list(self._locked):
            self._unlock(address)

    def _unlock(self, address: int) -> None:
        locked = self._locked.pop(address)
        self._unregister(address)
        del locked  # only now may it be unmapped

    def ranges_in(self, memory: mmap.mmap, start: int) -> list[tuple[int, int]]:
        """What is locked of a mapping that starts there, by the distance from it."""
        locked = list(self._locked.items())
        return [(at - start, at - start + each.n_bytes) for at, each in locked if each.memory is memory]


_all_locks: list[weakref.ref[PageLocks]] = []  # no WeakSet: its callbacks may be interrupted


def locked_ranges(memory: mmap.mmap, start: int) -> list[tuple[int, int]]:
    """What is locked of a mapping that starts there; its pages cannot be given back before they are unlocked."""
    with _guard:
        every = [locks() for locks in _all_locks]
    return [found for locks in every if locks is not None for found in locks.ranges_in(memory, start)]
