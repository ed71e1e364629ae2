"""Anonymous shared memory: no name that could be left behind, and no limit by the size of `/dev/shm` on Linux."""

from __future__ import annotations

import mmap
import os
import sys

from headrace.base.warning import warn_user

_SMALLEST = 2**26
_LARGEST = 2**34
_SHM = "/dev/shm"


def create_segment(n_workers: int) -> tuple[int, int]:
    """A descriptor of new shared memory, and its size in bytes. Memory is taken only as it is written to.

    Linux gives it without any file system (`memfd_create`), elsewhere it is a file without a name; then little free
    space is told in a warning, and respected.

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
    """The size that the file got: as asked for, or as much as this process may map (see `ulimit -v`)."""
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
