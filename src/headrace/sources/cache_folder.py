"""The folder of a cache: blocks that many processes write, read, check and throw away."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from headrace.base.warning import WarnOnce
from headrace.sources.cache import Cache

_CHECK_BYTES = 4  # behind the content of each block
_UNFINISHED = "unfinished"
_LEDGER = "ledger"
_N_LOCKS = 64  # blocks share them, so that there is nothing to clean up; at worst, one waits for another
_PATIENCE_S = 60.0  # how long another process is waited for, which may be stopped
_LONGEST_NAP_S = 0.1
_FULLEST = 0.9  # of the limit, after something was thrown away: so that this is not done for each block


class _NoRoomError(OSError):
    """A block cannot be kept, though everything else were thrown away."""


class _Kept(NamedTuple):
    """A block in the folder; the first that sorts is the one to throw away."""

    last_used_ns: int
    path: str
    n_bytes: int


class CacheFolder:
    """Blocks by name. Whatever is wrong with the folder, nothing here raises: then there just is no block.

    Blocks are written aside and renamed, so they are whole; those that are thrown away stay with whoever has them open.
    The ledger has the size of all blocks. It may say more, if a writer was killed or somebody has deleted blocks; then
    it is put right when the limit seems to be reached.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._folder = cache.folder

    def load(self, name: str, n_bytes: int) -> memoryview | None:
        """A block, if it is there and is what was saved; what is damaged is thrown away."""
        path = os.path.join(self._folder, name)
        try:
            with open(path, "rb") as file:
                stored = memoryview(file.read(n_bytes + _CHECK_BYTES + 1))
            content, check = stored[:-_CHECK_BYTES], stored[-_CHECK_BYTES:]
            if len(content) == n_bytes and check == _checksum(name, content):
                os.utime(path)  # used now; times of access are switched off on many disks
                return content
            os.unlink(path)
        except OSError:
            pass
        return None

    def save(self, name: str, content: bytes | memoryview) -> None:
        """Keep a block, if there is room for it; warns if there is none, once."""
        n_bytes = len(content) + _CHECK_BYTES
        try:
            with _lock(os.path.join(self._folder, _LEDGER)) as ledger:
                total = self._make_room(_read_number(ledger), n_bytes) + n_bytes
                os.pwrite(ledger, b"%020d" % total, 0)
                self._write(name, content)
        except OSError as error:
            warn_of_cache(self._folder, f"{type(error).__name__}: {error}")

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Whether the caller is the one who is to bring a block. Waits while somebody else does, but not for ever."""
        stripe = zlib.crc32(name.encode()) % _N_LOCKS
        with contextlib.ExitStack() as held:
            try:
                self._make()
                held.enter_context(_lock(os.path.join(self._folder, "locks", str(stripe))))
                is_ours = True
            except OSError as error:
                warn_of_cache(self._folder, f"{type(error).__name__}: {error}")
                is_ours = False
            yield is_ours

    def _make(self) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        os.makedirs(os.path.join(self._folder, "locks"), exist_ok=True)

    def _write(self, name: str, content: bytes | memoryview) -> None:
        path, unfinished = (os.path.join(self._folder, each) for each in (name, _UNFINISHED))
        try:
            with open(unfinished, "wb") as file:  # whoever has the ledger is the only one who writes
                file.write(content)
                file.write(_checksum(name, content))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(unfinished, path)
        except OSError:
            os.unlink(unfinished)
            raise

    def _make_room(self, total: int | None, n_bytes: int) -> int:
        """Make room for so many bytes, if there is none.

        Args:
            total: what the ledger says; None if it says nothing.

        Returns:
            How many bytes there are now.

        Raises:
            _NoRoomError: there is no room even so.
        """
        if total is not None and total + n_bytes <= self._room(total):
            return total
        kept = sorted(self._kept())
        total = sum(block.n_bytes for block in kept)
        room = self._room(total)
        goal = max(int(room * _FULLEST) - n_bytes, 0) if total + n_bytes > room else total
        for block in kept:
            if total <= goal:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(block.path)
            total -= block.n_bytes
        if n_bytes > room:
            raise _NoRoomError(f"there is no room for a block of {n_bytes} bytes, since {room} may be used")
        return total

    def _room(self, total: int) -> int:
        """How many bytes the cache may have, if it has `total` now."""
        on_disk = shutil.disk_usage(self._folder).free - self._cache.free_bytes
        return min(self._cache.limit_bytes, total + on_disk)

    def _kept(self) -> Iterator[_Kept]:
        for path in glob.iglob(f"{glob.escape(self._folder)}/??/*-*"):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(path)
                yield _Kept(status.st_mtime_ns, path, status.st_size)


def _read_number(descriptor: int) -> int | None:
    text = os.pread(descriptor, 20, 0)
    return int(text) if text.isdigit() else None


@contextlib.contextmanager
def _lock(path: str) -> Iterator[int]:
    """The descriptor of a file that no other process, and no other thread, has locked.

    Raises:
        TimeoutError: somebody did not let go of it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _wait_for(descriptor, path)
        try:
            yield descriptor
        finally:
            # Closing would not do: a process that was forked meanwhile has the descriptor, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, path: str) -> None:
    """Lock a file. The system offers no way to wait for that with a limit, but to ask again and again."""
    deadline, nap_s = time.monotonic() + _PATIENCE_S, 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} has been locked for {_PATIENCE_S:.0f} s") from None
        time.sleep(nap_s)
        nap_s = min(nap_s * 2, _LONGEST_NAP_S)


def _checksum(name: str, content: bytes | memoryview) -> bytes:
    """Of the content and of what it should be: a block in the place of another is damaged, too."""
    return zlib.crc32(content, zlib.crc32(name.encode())).to_bytes(_CHECK_BYTES, "little")


def warn_of_cache(folder: str, problem: str) -> None:
    """Warn that files are read from their store, once for each folder in each process."""
    _warner(folder)(
        f"The cache in {folder!r} cannot be used as it should: {problem}. Files are read from their store instead. "
        "Choose another folder, or pass cache=False."
    )


@functools.cache
def _warner(folder: str) -> WarnOnce:
    return WarnOnce()
