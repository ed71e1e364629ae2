"""Ranges of a file in a store, by way of a cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from headrace.sources.cache import Cache
from headrace.sources.cache_folder import CacheFolder
from headrace.sources.remote_file import StoredRanges
from headrace.sources.source import FileVersion


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
