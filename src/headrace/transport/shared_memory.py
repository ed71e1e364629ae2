"""Shared memory between the loader and one worker: blocks for batches, and a ring of messages.

The worker owns the blocks. It takes a free one, fills it, and sends the loader a reference. The loader hands out views
of it; when the last view is gone, it marks the block as free in a table that lies in the shared memory too. No message
is needed for that, and no block is reused while either side holds a view.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from headrace.base.errors import warn_user
from headrace.frameworks.framework import Array, empty_aligned
from headrace.frameworks.page_locks import announce, locked_ranges

if TYPE_CHECKING:
    import mmap

_SMALLEST = 2**26
_LARGEST = 2**34
_SHM = "/dev/shm"


def create_segment(n_workers: int) -> tuple[int, int]:
    """A descriptor of new shared memory, and its size in bytes. Memory is taken only as it is written to.

    Linux gives it without any file system (`memfd_create`), elsewhere it is a file without a name; then little free
    space is respected, with a warning.

    Args:
        n_workers: how many such segments there will be.

    Raises:
        OSError: there is no descriptor left, or no memory at all.
    """
    size = preferred_size(n_workers)
    try:
        fd = os.memfd_create("headrace", os.MFD_CLOEXEC)
    except AttributeError:
        return _create_file(size, n_workers)
    except OSError as error:
        import errno

        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return _create_file(size, n_workers)
    return fd, _mappable_size(fd, size)


def create_file() -> int:
    """A descriptor of a new empty file without a name."""
    try:
        return os.memfd_create("headrace-file", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        import tempfile

        with tempfile.TemporaryFile(prefix="headrace-") as file:
            return os.dup(file.fileno())


def _mappable_size(fd: int, size: int) -> int:
    """The size of the file: as requested, or as much as this process may map (see `ulimit -v`)."""
    while True:
        os.ftruncate(fd, size)
        try:
            map_segment(fd, size).close()
        except OSError:
            if size <= 2**20:
                raise
            size = size // 2 // mmap.PAGESIZE * mmap.PAGESIZE
        else:
            return size


def preferred_size(n_workers: int) -> int:
    """How much address space each of `n_workers` segments gets: all of them together up to half of the memory."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        total = 2**33
    return max(_SMALLEST, min(_LARGEST, total // 2 // max(n_workers, 1))) // mmap.PAGESIZE * mmap.PAGESIZE


def _create_file(size: int, n_workers: int) -> tuple[int, int]:
    import tempfile

    folders = [folder for folder in (_SHM, tempfile.gettempdir()) if os.access(folder, os.W_OK)]
    roomiest = max(folders, key=_free_bytes)
    folder = next((f for f in folders if _free_bytes(f) >= size * n_workers), roomiest)
    free = _free_bytes(folder)
    if free < size * n_workers:
        size = max(free // (2 * n_workers), 2**20) // mmap.PAGESIZE * mmap.PAGESIZE
        found = ", ".join(f"{f} has {_free_bytes(f) / 2**20:,.0f} MB free" for f in folders)
        warn_user(
            f"There is little shared memory for the workers: {found}. Each of {n_workers} workers uses at most "
            f"{size / 2**20:,.0f} MB of {folder}; batches that do not fit are sent through a socket, which is slower. "
            "In a container, raise the limit with --shm-size=8g or --ipc=host."
        )
    with tempfile.TemporaryFile(prefix="headrace-", dir=folder) as file:
        fd = os.dup(file.fileno())
    return fd, _mappable_size(fd, size)


def _free_bytes(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def is_backed_by_file(fd: int) -> bool:
    """Whether writing to the memory may fail for want of space in a file system, with a signal that kills."""
    return "memfd:" not in os.readlink(f"/proc/self/fd/{fd}") if sys.platform == "linux" else True


def map_segment(fd: int, size: int) -> mmap.mmap:
    """The memory behind the descriptor, which may be closed afterwards."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    return mmap.mmap(fd, size)


Buffer: TypeAlias = bytes | bytearray | memoryview


class RingWriter:
    """The worker's side.

    Args:
        taken: its only number is how many messages the loader is done with; both sides see it.
    """

    def __init__(self, memory: memoryview, taken: memoryview) -> None:
        self._memory = memory
        self._taken = taken
        self._put = 0  # messages
        self._starts: deque[int] = deque()  # of those that the loader may still read
        self._end = 0  # of the last one

    def put(self, parts: Sequence[Buffer], n_bytes: int) -> int | None:
        """Write a message of `n_bytes` in parts. Returns where it lies, None if there is no room."""
        start = self._find_room(n_bytes)
        if start is None:
            return None
        end = start
        for part in parts:
            begin, end = end, end + len(part)
            self._memory[begin:end] = part
        self._starts.append(start)
        self._end = end
        self._put += 1
        return start

    def _find_room(self, n_bytes: int) -> int | None:
        starts, end = self._starts, self._end
        for _ in range(len(starts) - self._put + self._taken[0]):
            starts.popleft()
        if not starts:  # all has been read: memory that was used just now is still in the cache
            return 0 if n_bytes <= len(self._memory) else None
        if end <= starts[0]:
            return end if n_bytes < starts[0] - end else None
        if n_bytes <= len(self._memory) - end:
            return end
        return 0 if n_bytes < starts[0] else None


class RingReader:
    """The loader's side."""

    def __init__(self, memory: memoryview, taken: memoryview) -> None:
        self._memory = memory
        self._taken = taken

    def take(self, start: int, n_bytes: int) -> bytes:
        """The message that lies there, which must be the next one in the order of writing."""
        message = bytes(self._memory[start : start + n_bytes])
        self._taken[0] += 1
        return message


_HELD, _FREE, _SENT = range(3)
_MARK_FREE = struct.Struct("?").pack_into  # writes 1, which is `_FREE`, for any object
_BOARD_BYTES = 64
_TAKEN_BYTES = 64  # a cache line of its own: the loader writes it while the worker writes to the board
_RING_BYTES = 2**19
_MAX_BLOCKS = 8192
_MAX_LEASES = 256
_DATA_START = 2**14  # a multiple of every page size there is
_ALIGNMENT = 4096
_WASTE = 4  # a free block may be used for something this many times smaller
WORTH_SHARING = 2**15
"""Smaller buffers travel in the message: a lease costs more than a copy."""


class BlockRef(NamedTuple):
    """Where in the arena a buffer lies."""

    block: int
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class _Layout:
    memory: mmap.mmap

    def board(self) -> memoryview:
        return memoryview(self.memory)[:_BOARD_BYTES].cast("q")

    def taken(self) -> memoryview:
        return memoryview(self.memory)[_BOARD_BYTES : _BOARD_BYTES + _TAKEN_BYTES].cast("q")

    def states(self) -> memoryview:
        start = _BOARD_BYTES + _TAKEN_BYTES
        return memoryview(self.memory)[start : start + _MAX_BLOCKS]

    def ring(self) -> memoryview:
        """Memory for messages, at the beginning of the data; none if there is little in all."""
        n_bytes = _RING_BYTES if len(self.memory) >= 32 * _RING_BYTES else 0
        return memoryview(self.memory)[_DATA_START : _DATA_START + n_bytes]


class WorkerArena:
    """The worker's side: hands out memory for batches.

    Attributes:
        board: a few numbers that both sides see.
        ring: a part of the memory for messages; None if there is no room for it.
        sent_bytes: of all blocks.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._reserve = fd if is_backed_by_file(fd) and hasattr(os, "posix_fallocate") else None
        self._memory = map_segment(fd, size)
        self._bytes = memoryview(self._memory)
        layout = _Layout(self._memory)
        self.board = layout.board()
        self._states = layout.states()
        self.ring = self._make_ring(layout)
        self.sent_bytes = 0
        self._end = _DATA_START + len(layout.ring())
        self._size = size
        self._free: list[tuple[int, int, int]] = []  # size, block, offset; sorted
        self._blocks: list[tuple[int, int]] = []  # size and offset of every block
        self._views: dict[int, weakref.ref[Array]] = {}  # what the worker itself still sees of the blocks in use
        self._by_address: dict[int, int] = {}
        self._address = _address(np.frombuffer(self._memory, np.uint8))

    def _make_ring(self, layout: _Layout) -> RingWriter | None:
        ring = layout.ring()
        if not ring or not self._has_space_for(_DATA_START, len(ring)):
            return None
        return RingWriter(ring, layout.taken())

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Like `np.empty`, in the arena if it is large enough to matter and there is room."""
        n_bytes = dtype.itemsize
        for n in shape:
            n_bytes *= n
        view = self.take(n_bytes) if n_bytes >= WORTH_SHARING and not dtype.hasobject else None
        return empty_aligned(shape, dtype) if view is None else view.view(dtype).reshape(shape)

    def take(self, n_bytes: int) -> Array | None:
        """A free block as bytes; None if there is no room."""
        block = self._find(n_bytes)
        if block is None:
            return None
        self._states[block] = _HELD
        offset = self._blocks[block][1]
        view = np.frombuffer(self._memory, np.uint8, n_bytes, offset)
        self._views[block] = weakref.ref(view)
        self._by_address[self._address + offset] = block
        return view

    def send(self, buffer: memoryview) -> BlockRef | None:
        """A reference to these bytes for the loader; they are copied if they are not in the arena. None: no room."""
        block = self._by_address.get(_address(np.frombuffer(buffer, np.uint8)))
        if block is None or self._states[block] != _HELD or self._blocks[block][0] < buffer.nbytes:
            return self._send_copy([buffer.cast("B")], buffer.nbytes)
        self._states[block] = _SENT
        self.sent_bytes += buffer.nbytes
        return BlockRef(block, self._blocks[block][1], buffer.nbytes)

    def send_parts(self, parts: Sequence[Buffer]) -> BlockRef | None:
        """A reference to these bytes, one after the other; None if they are few, or if there is no room."""
        n_bytes = sum([len(part) for part in parts])
        return None if n_bytes < WORTH_SHARING else self._send_copy(parts, n_bytes)

    def _send_copy(self, parts: Sequence[Buffer], n_bytes: int) -> BlockRef | None:
        view = self.take(n_bytes)
        if view is None:
            return None
        block = self._by_address[_address(view)]
        end = offset = self._blocks[block][1]
        for part in parts:
            start, end = end, end + len(part)
            self._bytes[start:end] = part
        self._states[block] = _SENT
        self.sent_bytes += n_bytes
        return BlockRef(block, offset, n_bytes)

    def take_back(self, ref: BlockRef) -> None:
        """The reference was not sent after all."""
        self._states[ref.block] = _HELD

    def _find(self, n_bytes: int) -> int | None:
        block = self._find_free(n_bytes)
        if block is None:
            self._collect()
            block = self._find_free(n_bytes)
        return self._carve(n_bytes) if block is None else block

    def _find_free(self, n_bytes: int) -> int | None:
        i = bisect_left(self._free, (n_bytes, -1, -1))
        if i == len(self._free) or self._free[i][0] > _WASTE * n_bytes:
            return None
        return self._free.pop(i)[1]

    def _collect(self) -> None:
        """Find the blocks that neither side sees any more; some were made, and never sent."""
        for block in [b for b, view in self._views.items() if self._states[b] != _SENT and view() is None]:
            size, offset = self._blocks[block]
            del self._views[block]
            del self._by_address[self._address + offset]
            insort(self._free, (size, block, offset))

    def _carve(self, n_bytes: int) -> int | None:
        """A new block. Sizes are rounded up, so that batches of nearly the same size can use each other's."""
        step = max(_ALIGNMENT, 1 << max(n_bytes.bit_length() - 4, 0))
        size = -(-n_bytes // step) * step
        if self._end + size > self._size or len(self._blocks) == _MAX_BLOCKS:
            return None
        if not self._has_space_for(self._end, size):
            return None
        self._blocks.append((size, self._end))
        self._end += size
        return len(self._blocks) - 1

    def _has_space_for(self, start: int, size: int) -> bool:
        """Whether this part may be written to; the file system behind the memory may be full."""
        if self._reserve is None:
            return True
        try:
            os.posix_fallocate(self._reserve, start, size)
        except OSError:
            return False
        return True


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]  # a fifth of the time that `ctypes.data` takes
    return address


class LoaderArena:
    """The loader's side: views of what the worker has sent.

    Args:
        most_leased: bytes that may be held by the user at one time; what comes beyond that is copied.

    Attributes:
        leased_bytes: that have come in blocks, in all.
    """

    def __init__(self, fd: int, size: int, most_leased: int) -> None:
        self._memory = map_segment(fd, size)
        announce(self._memory)
        layout = _Layout(self._memory)
        self.board = layout.board()
        self.ring = RingReader(layout.ring(), layout.taken())
        self._states = layout.states()
        self._most_leased = most_leased
        self.leased_bytes = 0
        self._leases: dict[int, tuple[weakref.ref[Array], int]] = {}  # those that have ended, until the next begins
        self._size = size
        _arenas[:] = [arena for arena in _arenas if arena() is not None]
        _arenas.append(weakref.ref(self))

    def lease(self, ref: BlockRef) -> Array:
        """The bytes of a block, which the worker leaves alone as long as any view of them lives."""
        view = np.frombuffer(self._memory, np.uint8, ref.n_bytes, ref.offset)
        self.leased_bytes += ref.n_bytes
        self._drop_ended()
        leased = sum([n_bytes for _, n_bytes in self._leases.values()])
        if leased + ref.n_bytes > self._most_leased or len(self._leases) >= _MAX_LEASES:
            copied = empty_aligned(view.shape, view.dtype)
            copied[:] = view
            self._states[ref.block] = _FREE
            return copied
        # Functions in C alone, which are called in any thread: an interrupt that is raised in one in Python is lost.
        end = partial(_MARK_FREE, self._states, ref.block)
        self._leases[ref.block] = weakref.ref(view, end), ref.n_bytes
        return view

    def _drop_ended(self) -> None:
        for block in [block for block, (lease, _) in self._leases.items() if lease() is None]:
            del self._leases[block]

    def leased(self) -> list[Array]:
        """What somebody sees of the blocks."""
        return [view for lease, _ in list(self._leases.values()) if (view := lease()) is not None]

    def disown(self) -> None:
        """Let no lease end in a forked child, which may drop what its parent still sees."""
        self._leases.clear()

    def retire(self) -> None:
        """The worker is gone: give back all memory but what is leased, which lives as long as its views."""
        self._drop_ended()
        if not self._leases:
            return
        import mmap

        remove = getattr(mmap, "MADV_REMOVE", None)
        if remove is None:
            return
        kept = sorted(self._kept_ranges())
        start = _DATA_START
        for kept_start, kept_end in [*kept, (self._size, self._size)]:
            n_bytes = (kept_start - start) // mmap.PAGESIZE * mmap.PAGESIZE
            if n_bytes > 0:
                self._memory.madvise(remove, start, n_bytes)
            start = -(-kept_end // mmap.PAGESIZE) * mmap.PAGESIZE

    def _kept_ranges(self) -> list[tuple[int, int]]:
        base = _address(np.frombuffer(self._memory, np.uint8))
        starts = [(_address(view) - base, view.nbytes) for view in self.leased()]
        return [(start, start + n_bytes) for start, n_bytes in starts] + locked_ranges(self._memory, base)


_arenas: list[weakref.ref[LoaderArena]] = []
_seen_at_fork: list[Array] = []  # or garbage that is collected in the child, before it disowns all, would end leases


def _see_all() -> None:
    _seen_at_fork.extend(view for arena in _known_arenas() for view in arena.leased())


def _disown_all() -> None:
    for arena in _known_arenas():
        arena.disown()
    _arenas.clear()
    _seen_at_fork.clear()


def _known_arenas() -> list[LoaderArena]:
    return [arena for ref in list(_arenas) if (arena := ref()) is not None]


os.register_at_fork(before=_see_all, after_in_parent=_seen_at_fork.clear, after_in_child=_disown_all)
