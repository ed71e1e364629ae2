"""Files that grow, and folders that get new ones: followed for ever, by polling."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TypeAlias

from headrace.sources.chunks import ObjectChunk, RecordChunk
from headrace.sources.compression import codec_by_name
from headrace.sources.files import is_local, list_files, stat_local
from headrace.sources.live import Arrivals, Connector
from headrace.sources.live_sockets import parsed
from headrace.sources.options import FileOptions
from headrace.sources.source import Chunk, FileVersion, OnBad, Source

LineFormat: TypeAlias = Literal["text", "words", "jsonl"]

_POLL_S = 0.05
_LIST_S = 0.5  # between two looks for new files
_SETTLED_S = 1.0  # that a file must not have changed for, to be taken for complete
_GONE_S = 5.0  # that whoever writes to a file that was moved may take to open the next one
_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 64  # that tell a file from another one that got its number


class _Following:
    """Something that is polled until it is closed."""

    def __init__(self, look: Callable[[], Iterator[Arrivals]], every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[Arrivals]:
        while not self._closed.is_set():
            found = False
            for arrivals in self._look():
                found = found or bool(arrivals.rows)
                yield arrivals
                if self._closed.is_set():
                    return
            if not found:
                self._closed.wait(self._every_s)

    def close(self) -> None:
        self._closed.set()


@dataclass
class _Followed:
    """A file that is read on as it grows.

    Attributes:
        offset: behind the last whole line.
        head: its first bytes.
        gone_at: when it was first seen to be moved or removed.
    """

    path: str
    file: BinaryIO
    offset: int = 0
    head: bytes = b""
    gone_at: float | None = None

    def position(self, offset: int) -> list[Any]:
        return [self.path, offset, zlib.crc32(self.head[: min(offset, _HEAD_BYTES)])]


class LineFollower(Connector):
    """The lines of text files that grow: new lines, new files, files that are rotated or cut.

    A file is known by its number in the file system, not by its name: one that is renamed is read to its end, and one
    that takes its name from its beginning. One that is cut short is read from its beginning.
    """

    has_positions = True
    promise = "exactly once by offsets"

    def __init__(self, paths: Sequence[str | os.PathLike[str]], options: FileOptions, format: LineFormat) -> None:  # noqa: A002
        self._paths = [os.fspath(path) for path in paths]
        self._options = options
        self._format = format
        self.is_one_to_one = format != "words"
        self.keeps_blanks = format == "text"
        self.name = f"the lines of {', '.join(self._paths[:3])}{', …' if len(self._paths) > 3 else ''}"
        for path in self._paths:
            if not is_local(path):
                raise ValueError(
                    f"follow=True reads lines of local files as they grow, got {path}. Follow whole files."
                )

    def connect(self, positions: Mapping[str, Any]) -> Iterable[Arrivals]:
        return _FollowedLines(self, positions)

    def find(self) -> dict[int, str]:
        """The files that there are now, by their numbers."""
        found = {}
        for path in self._paths:
            try:
                files = list_files([path], self._options)
            except FileNotFoundError:
                continue  # it may come
            for file in files:
                if codec_by_name(file.path) is not None:
                    raise ValueError(
                        f"follow=True reads lines of plain text files as they grow, but {file.path} is compressed. "
                        "Name the files, or narrow the pattern."
                    )
                found[os.stat(file.path).st_ino] = file.path
        return found

    def decode(self, rows: Sequence[Any], where: str, on_bad: OnBad | None) -> Iterator[Chunk]:
        encoding, errors = self._options.encoding, self._options.errors
        if self._format == "jsonl":
            values = list(parsed(rows, lambda raw: json.loads(raw.decode(encoding, errors)), where, on_bad))
            yield RecordChunk(values) if all(type(value) is dict for value in values) else ObjectChunk(values, "value")
            return
        lines = list(parsed(rows, lambda raw: raw.decode(encoding, errors), where, on_bad))
        if self._format == "text":
            yield ObjectChunk(lines, "text")
        else:
            yield ObjectChunk([word for line in lines for word in line.split()], "word")


class _FollowedLines(_Following):
    def __init__(self, follower: LineFollower, positions: Mapping[str, Any]) -> None:
        super().__init__(self._read_on, _POLL_S)
        self._follower = follower
        self._positions = {int(number): tuple(position) for number, position in positions.items()}
        self._open: dict[int, _Followed] = {}
        self._listed_at = 0.0

    def __iter__(self) -> Iterator[Arrivals]:
        try:
            yield from self._find_moved()
            yield from super().__iter__()
        finally:
            for followed in self._open.values():
                followed.file.close()

    def _find_moved(self) -> Iterator[Arrivals]:
        """Files that were renamed since the positions were saved, and must be read to their ends first."""
        for number, (path, *_) in self._positions.items():
            folder = os.path.dirname(path) or "."
            if os.path.isdir(folder):
                for entry in os.scandir(folder):
                    if entry.inode() == number and entry.is_file():
                        yield self._add(number, entry.path)

    def _list(self) -> dict[int, str] | None:
        if time.monotonic() - self._listed_at < _LIST_S and self._listed_at:
            return None
        self._listed_at = time.monotonic()
        return self._follower.find()

    def _read_on(self) -> Iterator[Arrivals]:
        listed = self._list()
        # What is open is read first: where a file was rotated, its rest comes before what follows in the new one.
        for number, followed in list(self._open.items()):
            yield from self._new_lines(number, followed)
            if listed is not None:
                followed.gone_at = None if number in listed else followed.gone_at or time.monotonic()
            if followed.gone_at is not None and time.monotonic() - followed.gone_at > _GONE_S:
                yield from self._last_line(number, followed)
        for number, path in () if listed is None else sorted(listed.items(), key=_time_of):
            if number not in self._open:
                yield self._add(number, path)
                yield from self._new_lines(number, self._open[number])
            self._open[number].path = path

    def _add(self, number: int, path: str) -> Arrivals:
        """Begin to follow a file: no rows, but where it begins."""
        followed = _Followed(path, open(path, "rb"))  # noqa: SIM115 (closed when it is gone, or nobody follows)
        followed.head = followed.file.read(_HEAD_BYTES)
        _, offset, digest = self._positions.get(number, (path, 0, 0))
        is_known = followed.position(offset)[2] == digest and os.stat(path).st_size >= offset
        followed.offset = offset if is_known else 0
        self._open[number] = followed
        return Arrivals((), [followed.position(followed.offset)], str(number))

    def _new_lines(self, number: int, followed: _Followed) -> Iterator[Arrivals]:
        size = os.fstat(followed.file.fileno()).st_size
        if size < followed.offset:  # it was cut, to be written anew
            followed.offset = 0
        while size > followed.offset:
            followed.file.seek(followed.offset)
            if len(followed.head) < _HEAD_BYTES:
                followed.file.seek(0)
                followed.head = followed.file.read(_HEAD_BYTES)
                followed.file.seek(followed.offset)
            piece = followed.file.read(_PIECE_BYTES)
            if b"\n" not in piece:
                piece += followed.file.read()  # one long line, as far as it is there
            whole = piece[: piece.rfind(b"\n") + 1]
            if not whole:
                return
            yield self._lines(number, followed, whole)

    def _lines(self, number: int, followed: _Followed, whole: bytes) -> Arrivals:
        rows, positions = [], []
        for line in io.BytesIO(whole):
            followed.offset += len(line)
            if self._follower.keeps_blanks or line.strip():
                rows.append(line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n"))
                positions.append(followed.position(followed.offset))
        return Arrivals(rows, positions, str(number))

    def _last_line(self, number: int, followed: _Followed) -> Iterator[Arrivals]:
        """A file has been moved or removed: what is left has no newline."""
        followed.file.seek(followed.offset)
        rest = followed.file.read()
        if b"\n" in rest:
            return  # it is still being written: the next look reads it
        if rest:
            yield self._lines(number, followed, rest)
        followed.file.close()
        del self._open[number]


def _time_of(listed: tuple[int, str]) -> tuple[int, str]:
    try:
        return os.stat(listed[1]).st_mtime_ns, listed[1]
    except OSError:
        return 0, listed[1]


class FileFollower(Connector):
    """Whole files of any format, as they appear; each is read once, when it is complete.

    Args:
        open_source: makes the source of a file.
    """

    has_positions = True
    promise = "exactly once by offsets"
    is_one_to_one = False
    most_in_window = 1

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        options: FileOptions,
        open_source: Callable[[list[str]], Source],
    ) -> None:
        self._paths = [os.fspath(path) for path in paths]
        self._options = options
        self._open_source = open_source
        self.name = f"new files of {', '.join(self._paths[:3])}{', …' if len(self._paths) > 3 else ''}"

    def connect(self, positions: Mapping[str, Any]) -> Iterable[Arrivals]:
        seen = set(positions)

        def look() -> Iterator[Arrivals]:
            for file in self._find():
                if file.path not in seen and _is_settled(file):
                    seen.add(file.path)
                    yield Arrivals([file.path], [file.size or 0], file.path)

        return _Following(look, _LIST_S)

    def _find(self) -> Iterator[FileVersion]:
        for path in self._paths:
            try:
                yield from list_files([path], self._options)
            except FileNotFoundError:
                continue  # it may come

    def decode(self, rows: Sequence[Any], where: str, on_bad: OnBad | None) -> Iterator[Chunk]:
        for path in rows:
            source = self._open_source([path])
            for block in source.blocks():
                yield from source.read(block, 0, on_bad)


def _is_settled(file: FileVersion) -> bool:
    """Whether nobody writes to a file any more; what a store lists is complete."""
    if not is_local(file.path):
        return True
    try:
        changed_ns = int(stat_local(file.path.removeprefix("file://")).version or 0)
    except OSError:
        return False
    return time.time() - changed_ns / 1e9 > _SETTLED_S
