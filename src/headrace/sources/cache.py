"""Keeps what was read from stores on a local disk, shared by all processes of a machine."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from headrace.base.errors import WarnOnce
from headrace.sources.remote_file import StoredRanges
from headrace.sources.source import FileVersion

BLOCK_BYTES = 8 << 20
_FOLDER_VARIABLE = "HEADRACE_CACHE"
_LIMIT_VARIABLE = "HEADRACE_CACHE_LIMIT"
_LIMIT = "50 GB"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?\s*", re.IGNORECASE)


class Cache:
    """Keeps what was read from stores in a local folder: for the next epoch, for the other workers, for the next job.

    Files are kept in blocks, when they are first read: a part of a file costs no more than that part. A file is known
    by its address, size and version (an etag, or the time of its last change); one that has no version is not kept.

    Guarantees: any number of processes may share a folder, and one of them downloads a block, while the others wait;
    what is read is what was downloaded, and a damaged block is fetched again; at most `limit` bytes are kept, and at
    least `free` bytes of the disk are left alone: what was used longest ago goes first, and nobody who is reading it
    is disturbed. Where nothing can be kept, files are read from their store as if there were no cache, with a warning.

    Args:
        folder: created if missing, for this user only; `~` is the home folder.
        limit: bytes, or a string like "50 GB" or "1.5 TiB".
        free: how much of the disk is left free, in the same way.
        block_bytes: how long a block is.

    Raises:
        ValueError: a size is invalid, or a block does not fit into `limit`.

    Examples:
        >>> cache = Cache("~/.cache/headrace", limit="200 GB")
        >>> stream = read_parquet("s3://bucket/table", cache=cache)  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit: int | str = _LIMIT,
        *,
        free: int | str = "2 GB",
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self.limit_bytes = size_in_bytes(limit, "limit")
        self.free_bytes = size_in_bytes(free, "free")
        self.block_bytes = block_bytes
        if not 0 < block_bytes <= self.limit_bytes:
            raise ValueError(
                f"block_bytes must be at least 1 and at most limit={self.limit_bytes}, got {block_bytes}. "
                "Pass a larger limit."
            )

    def __repr__(self) -> str:
        return f"Cache({self.folder!r}, limit={self.limit_bytes})"


CacheLike: TypeAlias = "Cache | str | os.PathLike[str] | bool | None"
"""What users may pass: a cache, its folder, False for none; None goes by the environment."""


def find_cache(given: CacheLike) -> Cache | None:
    """The cache that is meant, if any.

    None means the folder in the environment variable HEADRACE_CACHE, if that is set, with the limit in
    HEADRACE_CACHE_LIMIT, if that is.

    Raises:
        ValueError: the limit in the environment is not a size.
        TypeError: `given` is something else.
    """
    match given:
        case Cache():
            return given
        case False:
            return None
        case None:
            folder = os.environ.get(_FOLDER_VARIABLE)
            return Cache(folder, os.environ.get(_LIMIT_VARIABLE) or _LIMIT) if folder else None
        case str() | os.PathLike():
            return Cache(given)
        case _:
            raise TypeError(f"cache must be a Cache, the path of a folder, False or None, got {given!r}.")


def size_in_bytes(size: int | str, what: str) -> int:
    """A size like "50 GB" (10^9 bytes each) or "50 GiB" (2^30) in bytes.

    Raises:
        ValueError: it is not a size.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None:
        raise ValueError(f"{what} must be a number of bytes, or a string like '50 GB', got {size!r}.")
    number, prefix, binary = found.groups()
    power = "kmgt".index(prefix.lower()) + 1 if prefix else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


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
            with open(path, "rb", opener=_open_at_once) as file:
                is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                stored = memoryview(file.read(n_bytes + _CHECK_BYTES + 1) if is_file else b"")
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
            with open(unfinished, "wb", opener=_open_at_once) as file:  # only whoever has the ledger writes
                file.write(content)
                file.write(_checksum(name, content))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(unfinished, path)
        except OSError:
            os.unlink(unfinished)
            raise

    def _make_room(self, total: int | None, n_bytes: int) -> int:
        """Make room for `n_bytes`, if there is none.

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


def _open_at_once(path: str, flags: int) -> int:
    """A descriptor, without waiting for the other end, should somebody have put a pipe there."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


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


class CachedRanges:
    """Reads whole blocks of a file, and keeps them.

    Args:
        file: as it was listed; its size and version must be known.
        open_ranges: opens the file in its store; is called when something is missing, so never if nothing is.
    """

    def __init__(self, file: FileVersion, cache: Cache, open_ranges: Callable[[], StoredRanges]) -> None:
        assert file.size is not None
        self._size = file.size
        self._block_bytes = cache.block_bytes
        self._folder = CacheFolder(cache)
        self._prefix = _name_of(file, cache.block_bytes)
        self._open_ranges = open_ranges
        self._store: StoredRanges | None = None
        self._number, self._block = -1, memoryview(b"")  # what was read last

    def fetch(self, start: int, stop: int) -> bytes:
        parts = []
        while start < stop:
            block = self._read(start // self._block_bytes)
            offset = start % self._block_bytes
            part = block[offset : offset + stop - start]
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._block = memoryview(b"")
        if self._store is not None:
            self._store.close()

    def _read(self, number: int) -> memoryview:
        if number != self._number:
            start = number * self._block_bytes
            stop = min(start + self._block_bytes, self._size)
            name = f"{self._prefix}-{number}"
            block = self._folder.load(name, stop - start)
            self._block = self._download(name, start, stop) if block is None else block
            self._number = number
        return self._block

    def _download(self, name: str, start: int, stop: int) -> memoryview:
        with self._folder.claim(name) as is_ours:
            block = self._folder.load(name, stop - start)  # which somebody may have brought while we waited
            if block is not None:
                return block
            if self._store is None:
                self._store = self._open_ranges()
            content = self._store.fetch(start, stop)
            self._store.check()  # what is kept would be wrong for ever
            if is_ours:
                self._folder.save(name, content)
        return memoryview(content)


def _name_of(file: FileVersion, block_bytes: int) -> str:
    identity = json.dumps([file.path, file.size, file.version, block_bytes]).encode()
    digest = hashlib.blake2b(identity, digest_size=16).hexdigest()
    return f"{digest[:2]}/{digest[2:]}"
