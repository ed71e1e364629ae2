"""A file in a store as a Python file: read in ranges, each of which comes whole or fails."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from headrace.base.errors import ChangedFileError, warn_user
from headrace.sources.retry import Retries, http_status
from headrace.sources.source import FileVersion

_AHEAD_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
_PATIENCE_S = 5.0  # with a response that does not say how long it is
_SLOW_BYTES_PER_S = 1 << 20
_NO_SUCH_RANGE = 416
_VERSION_KEYS = (
    *("ETag", "etag", "generation", "blob_id", "mtime"),
    *("Last-Modified", "LastModified", "updated", "created"),
)


class _NothingCameError(OSError):
    """An answer was well-formed, but short."""


class Ranges(Protocol):
    """Gets ranges of one file."""

    def fetch(self, start: int, stop: int) -> bytes:
        """The bytes of [start, stop), all of them; only if the size of the file is unknown, fewer at its end."""
        ...

    def close(self) -> None: ...


class StoredRanges(Ranges, Protocol):
    """Gets ranges of one file from its store."""

    def check(self) -> FileVersion:
        """The file as it is, which must be the one that was listed; so what was fetched before is of that one.

        Raises:
            ChangedFileError: it is not.
        """
        ...


class RemoteFile(io.RawIOBase):
    """Reads a file in pieces: large ones up to `read_to` (None: its end), elsewhere what is asked for."""

    def __init__(self, ranges: Ranges, size: int | None, read_to: int | None) -> None:
        self._ranges = ranges
        self._size = size
        self._read_to = size if read_to is None else read_to
        self._position = 0
        self._held_from, self._held = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._size is not None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and self._size is None:
            raise io.UnsupportedOperation("the size of the file is unknown")
        self._position = offset + (0, self._position, self._size or 0)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        held = self._from_position(len(buffer))
        n = min(len(held), len(buffer))
        memoryview(buffer).cast("B")[:n] = held[:n]
        self._position += n
        return n

    def _from_position(self, n: int) -> memoryview:
        """The bytes in memory from the position on, fetched from the store if there are none."""
        if not self._held_from <= self._position < self._held_from + len(self._held):
            stop = self._position + self._how_many(n)
            content = self._ranges.fetch(self._position, stop) if stop > self._position else b""
            self._held_from, self._held = self._position, memoryview(content)
        return self._held[self._position - self._held_from :]

    def _how_many(self, n: int) -> int:
        if self._size is None:
            return max(n, _PIECE_BYTES)
        ahead = min(_AHEAD_BYTES, (self._read_to or 0) - self._position)
        return min(max(n, ahead), self._size - self._position)

    def close(self) -> None:
        if not self.closed:
            self._ranges.close()
            self._held = memoryview(b"")
        super().close()


class ObjectRanges:
    """Ranges of an object in any store of fsspec."""

    def __init__(self, fs: Any, name: str, file: FileVersion, retries: Retries) -> None:
        self._fs = fs
        self._name = name
        self._file = file
        self._retries = retries

    def fetch(self, start: int, stop: int) -> bytes:
        parts = []
        while start < stop:
            part = _try_reading(self._retries, self._file, start, partial(self._some, start, stop))
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _some(self, start: int, stop: int) -> bytes:
        part: bytes = self._fs.cat_file(self._name, start=start, end=stop)
        if not part or len(part) > stop - start:
            raise _NothingCameError(f"asked for the bytes {start} to {stop}, got {len(part)}")
        return part

    def check(self) -> FileVersion:
        now = self._retries.call(self._look, f"looking at {self._file.path}")
        check_version(self._file, now)
        return now

    def _look(self) -> FileVersion:
        self._fs.invalidate_cache()  # else the answer may be an old one
        return remote_version(self._file.path, self._fs.info(self._name))

    def close(self) -> None:
        """Nothing is open between two requests."""


class HttpRanges:
    """Ranges of a file on a web server, as a stream that is opened again where it broke off.

    Where the server knows no ranges, the stream is the whole file, and what is not wanted is skipped.
    """

    def __init__(self, fs: Any, file: FileVersion, retries: Retries) -> None:
        self._fs = fs
        self._file = file
        self._retries = retries
        self._stream: Any = None
        self._position = self._stop = 0
        self._begun = time.monotonic()
        self._has_told = False

    def can_seek(self) -> bool:
        """Whether the server knows ranges."""
        self._retries.call(lambda: self._open(0, 1), f"opening {self._file.path}")
        status = self._stream.r.status
        self.close()
        return bool(status == 206)

    def fetch(self, start: int, stop: int) -> bytes:
        parts = []
        while start < stop:
            part = _try_reading(self._retries, self._file, start, partial(self._some, start, stop))
            if not part:
                break
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def check(self) -> FileVersion:
        return self._file  # each response has its version, which is checked before it is read

    def _some(self, start: int, stop: int) -> bytes:
        try:
            if self._stream is None or not start == self._position < self._stop:
                self._open(start, stop)
            return self._read(min(stop - start, _PIECE_BYTES))
        except BaseException:
            self.close()
            raise

    def _open(self, start: int, stop: int) -> None:
        self.close()
        headers = {
            **self._fs.kwargs.get("headers", {}),
            "Range": f"bytes={start}-{stop - 1}",
            "Accept-Encoding": "identity",  # bytes are counted, so they must come as they are
        }
        # `size` keeps fsspec from asking for it; the response to this request has it as well.
        self._stream = self._fs.open(self._file.path, "rb", block_size=0, size=1, headers=headers)
        answer = self._stream.r
        check_version(self._file, _version_in(self._file.path, answer.status, answer.headers))
        if answer.status == 206:
            self._position, self._stop = start, stop
        else:
            self._position, self._stop = 0, self._file.size or stop
            self._pass_over(start)

    def _pass_over(self, start: int) -> None:
        while self._position < start and self._read(min(start - self._position, _PIECE_BYTES)):
            pass

    def _read(self, n: int) -> bytes:
        part: bytes = self._stream.read(n)
        if self._file.size is None and not self._has_told:
            self._tell_endless(time.monotonic() - self._begun)
        if not part and self._file.size is not None:
            raise _NothingCameError(f"the answer ends at byte {self._position}")
        self._position += len(part)
        return part

    def _tell_endless(self, seconds: float) -> None:
        """Say so if a response that does not say how long it is may have no end: it is slow, too."""
        if seconds > _PATIENCE_S and self._position < _SLOW_BYTES_PER_S * seconds:
            self._has_told = True
            warn_user(
                f"{self._file.path} has sent {self._position:,} bytes in {seconds:.0f} s, and does not say how many "
                "there are. If it never ends, rows come late, and a resume begins anew: write read_live(url, "
                "format=...), which hands rows out as they come."
            )

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def remote_version(path: str, info: Mapping[str, Any]) -> FileVersion:
    """A file as a store describes it."""
    version = next((info[key] for key in _VERSION_KEYS if info.get(key)), None)
    if isinstance(version, datetime) and version.tzinfo is not None:
        version = version.timestamp()  # which is what the same store may say where it lists a folder
    return FileVersion(path, info.get("size"), None if version is None else str(version))


def check_version(listed: FileVersion, now: FileVersion) -> None:
    """Compare what is known of both.

    Raises:
        ChangedFileError: they differ.
    """
    for what, before, after in (("size", listed.size, now.size), ("version", listed.version, now.version)):
        if before is not None and after is not None and before != after:
            raise ChangedFileError(
                f"{listed.path} has changed since it was listed: its {what} was {before}, and is {after}. "
                "List the files again, and start over."
            )


def _version_in(path: str, status: int, headers: Mapping[str, str]) -> FileVersion:
    """A file as an answer of a web server describes it."""
    size = headers.get("Content-Range", "").rpartition("/")[2] if status == 206 else headers.get("Content-Length", "")
    if headers.get("Content-Encoding", "identity") != "identity":
        size = ""  # counts the bytes as they are sent
    # Headers are looked up one by one, because they may be written in any case.
    known = {key: headers.get(key) for key in ("ETag", "Last-Modified")}
    return remote_version(path, {**known, "size": int(size) if size.isdigit() else None})


def _try_reading(retries: Retries, file: FileVersion, start: int, read: Callable[[], bytes]) -> bytes:
    try:
        return retries.call(read, f"reading {file.path} at byte {start}")
    except Exception as error:
        if isinstance(error.__cause__, _NothingCameError) or http_status(error) == _NO_SUCH_RANGE:
            raise ChangedFileError(
                f"{file.path} ends at byte {start}, but {file.size} bytes were listed ({retries.attempts} attempts)."
            ) from error
        raise
