"""Memory for the large arrays of batches in one process: used again as soon as nobody sees it.

New memory comes from the system page by page, each of them cleared first, which takes longer than to fill it.
"""

from __future__ import annotations

import mmap
import sys
import weakref
from collections import deque
from typing import Any

import numpy as np

from headrace.frameworks.framework import Array, empty_aligned
from headrace.frameworks.page_locks import announce

WORTH_RECYCLING = 2**20
"""Smaller arrays are left to the C library, which keeps such memory itself."""
_WASTE = 4  # a free block may be used for something this many times smaller
_MOST_FREE = 16  # blocks
_STALE = 32  # allocations after which a free block that none of them wanted is given back


class RecycledMemory:
    """Hands out memory for arrays, aligned to pages.

    Guarantees: memory is handed out again only when the last array, tensor or view of it is gone; what is kept, stays.
    With each allocation, free memory is given back to the system that was not wanted for a while, or is more than a few
    blocks; all of it, when this object goes. Whatever is seen then lives on.

    `allocate` is for one thread; arrays may end in any.
    """

    def __init__(self) -> None:
        self._leases: dict[int, tuple[weakref.ref[Array], mmap.mmap]] = {}  # what somebody sees, by the reference's id
        self._ended: deque[weakref.ref[Array]] = deque()  # since the last allocation
        self._free: deque[tuple[int, mmap.mmap]] = deque()  # and how many allocations there had been
        self._n_allocations = 0

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Like `np.empty`; in recycled memory if it is large enough to matter."""
        n_bytes = dtype.itemsize
        for n in shape:
            n_bytes *= n
        if n_bytes < WORTH_RECYCLING or dtype.hasobject:
            return empty_aligned(shape, dtype)
        self._collect()
        memory = self._find_free(n_bytes) or _map(n_bytes)
        if memory is None:
            return empty_aligned(shape, dtype)
        return self._lease(memory, n_bytes).view(dtype).reshape(shape)

    def copy(self, source: Any) -> Array:
        """The bytes of a buffer, in memory that may be written to."""
        view: Array = np.frombuffer(source, np.uint8)
        copied = self.allocate(view.shape, view.dtype)
        copied[:] = view
        return copied

    def _lease(self, memory: mmap.mmap, n_bytes: int) -> Array:
        # NumPy lets every view of this array refer to it, and not to one another: so it goes last.
        view = np.frombuffer(memory, np.uint8, n_bytes)
        lease = weakref.ref(view, self._ended.append)  # a function in C: an interrupt in one in Python would be lost
        self._leases[id(lease)] = lease, memory
        return view

    def _collect(self) -> None:
        self._n_allocations += 1
        while self._ended:
            _, memory = self._leases.pop(id(self._ended.popleft()))
            self._free.append((self._n_allocations, memory))
        while self._free and (len(self._free) > _MOST_FREE or self._free[0][0] < self._n_allocations - _STALE):
            self._free.popleft()

    def _find_free(self, n_bytes: int) -> mmap.mmap | None:
        """The smallest that is large enough; the last one of those, which may still be in the cache."""
        fitting = [(len(memory), -i) for i, (_, memory) in enumerate(self._free) if n_bytes <= len(memory)]
        if not fitting or min(fitting)[0] > _WASTE * n_bytes:
            return None
        i = -min(fitting)[1]
        memory = self._free[i][1]
        del self._free[i]
        return memory


def _map(n_bytes: int) -> mmap.mmap | None:
    """New memory, rounded up a little, so that batches of nearly the same size can use each other's."""
    step = max(mmap.PAGESIZE, 1 << max(n_bytes.bit_length() - 4, 0))
    size = -(-n_bytes // step) * step
    try:
        flags = () if sys.platform == "win32" else (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,)
        memory = mmap.mmap(-1, size, *flags)
    except OSError:  # too little of it, or too many maps
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    announce(memory)
    return memory
