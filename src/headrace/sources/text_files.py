"""Records of text files: how files are split and opened, and where records begin and end in their bytes."""

from __future__ import annotations

import copy
import io
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias

from headrace.base.errors import ChangedFileError, RecordError
from headrace.sources.chunks import skip_rows
from headrace.sources.compression import N_FIRST_BYTES, codec_by_content, codec_by_name
from headrace.sources.encodings import N_MARK_BYTES, TextEncoding, as_utf8, find_encoding
from headrace.sources.files import Paths, can_seek, check_unchanged, is_local, list_files, open_range, open_stream
from headrace.sources.options import FileOptions
from headrace.sources.path_columns import PathColumns, find_path_columns
from headrace.sources.source import BadRecord, Block, Chunk, FileVersion, OnBad, Stretch

if TYPE_CHECKING:
    from typing_extensions import Self

BEYOND_BYTES = 1 << 16  # read with the last piece of a block, so that its last line is most likely whole


class RecordEnds(Protocol):
    """Finds where records end in a buffer that begins where one does."""

    @property
    def unit_bytes(self) -> int: ...

    def last(self, buffer: bytes) -> int:
        """The end of the last whole record; 0 if there is none."""
        ...

    def first_after(self, buffer: bytes, place: int) -> int:
        """The end of the record that the byte at `place` belongs to; 0 if it is not in the buffer."""
        ...

    def after_damage(self, buffer: bytes) -> int:
        """Where to go on within a record whose end was not found; 0 if that is not in the buffer."""
        ...


@dataclass(frozen=True, slots=True)
class LineEnds:
    """Lines end with a newline, aligned to its width."""

    newline: bytes

    @property
    def unit_bytes(self) -> int:
        return len(self.newline)

    def last(self, buffer: bytes) -> int:
        unit = self.unit_bytes
        place = buffer.rfind(self.newline)
        while place % unit and place >= 0:  # half of one character and half of the next can look like a newline
            place = buffer.rfind(self.newline, 0, place + unit - 1)
        return place + unit if place >= 0 else 0

    def first_after(self, buffer: bytes, place: int) -> int:
        unit = self.unit_bytes
        place = buffer.find(self.newline, place - place % unit)
        while place % unit and place >= 0:
            place = buffer.find(self.newline, place + 1)
        return place + unit if place >= 0 else 0

    def after_damage(self, buffer: bytes) -> int:
        return self.first_after(buffer, 0)


@dataclass(frozen=True, slots=True)
class Segment:
    """Some whole records, as they are in the file.

    Attributes:
        offset: where in the file, or in its decompressed content, they begin.
        content: the records, each with its end; only the last one of a file may have none.
        is_rest: whether the file ended before the last record did.
    """

    offset: int
    content: bytes
    is_rest: bool = False


TooLong: TypeAlias = Callable[[int, bytes], None]
"""Called with the offset and the beginning of a record that is too long, which is then skipped."""


class SegmentReader:
    """Reads the records that start in a range, a segment at a time.

    Guarantees: the segments of neighbouring ranges have each record exactly once. At most `max_record_bytes` and a
    piece are held.

    Args:
        stream: at `start`, or behind what was read of it already.
        start: where the range begins; a record must begin there too, unless `seek_record` is called.
        stop: where it ends, exclusive; None for the end of the stream.
        too_long: is called for a record that has no end within `max_record_bytes`.
        piece_bytes: how much is read at a time.
        least_size: the stream has this many bytes at least.
        already_read: what was read of the stream from `start` on.
        is_exact: whether a record is too long wherever reading began; else one whose end was read with it may pass.
    """

    def __init__(
        self,
        stream: BinaryIO,
        start: int,
        stop: int | None,
        ends: RecordEnds,
        max_record_bytes: int,
        too_long: TooLong,
        piece_bytes: int,
        least_size: int | None = None,
        already_read: bytes = b"",
        *,
        is_exact: bool = False,
    ) -> None:
        self._stream = stream
        self._is_exact = is_exact
        self._stop = stop
        self._least_size = least_size
        self._ends = ends
        self._max_record_bytes = max_record_bytes
        self._too_long = too_long
        self._piece_bytes = piece_bytes
        self._offset = start  # of the buffer
        self._buffer = already_read
        self._at_end = False
        self.is_in_record = False
        """Whether a record that starts before the range goes on behind it."""

    @property
    def unread(self) -> tuple[int, bytes]:
        """What was read, but belongs to no segment so far: where it begins, and the bytes."""
        return self._offset, self._buffer

    def ends_before(self, place: int) -> bool:
        """Whether the stream ends at `place` or before; reads on as far as it must."""
        while not self._at_end and self._offset + len(self._buffer) <= place:
            self._read_on()
        return self._offset + len(self._buffer) <= place

    def skip_bytes(self, place: int) -> None:
        """Pass over all bytes before `place`, whatever they are."""
        while not self.ends_before(self._offset) and self._offset < place:
            self._drop(min(len(self._buffer), place - self._offset))

    def skip_records(self, place: int) -> None:
        """Pass over the records that start before `place`; those behind them follow up to the stop."""
        self._stop, stop = place, self._stop
        self._too_long, too_long = _pass_over, self._too_long  # who reads them reports them
        for _ in self:
            pass
        self._stop, self._too_long = stop, too_long

    def skip_mark(self, mark: bytes) -> None:
        """Pass over a byte order mark, if the file begins with it; the record behind it starts in this range."""
        self._buffer += self._stream.read(max(0, len(mark) - len(self._buffer)))
        if mark and self._buffer.startswith(mark):
            self._drop(len(mark))
            self._stop = None if self._stop is None else max(self._stop, self._offset + 1)

    def seek_record(self) -> None:
        """Pass over what is left of a record that starts before the range; at most to the end of the range."""
        while not (end := self._ends.after_damage(self._buffer)):
            self._drop(len(self._buffer) if self._at_end else len(self._buffer) - self._n_of_half_unit())
            self.is_in_record = not self._at_end
            if self._at_end or self._is_done():
                return
            self._read_on()
        self._drop(end)
        self.is_in_record = False

    def _n_of_half_unit(self) -> int:
        return len(self._buffer) % self._ends.unit_bytes

    def __iter__(self) -> Iterator[Segment]:
        while not self._is_done() and (self._buffer or not self._at_end):
            if not self._is_enough():
                self._read_on()
            end = self._end_of_segment()
            if end:
                segment = Segment(self._offset, self._buffer[:end], self._at_end)
                self._drop(end)
                yield segment
            elif len(self._buffer) >= self._max_record_bytes + self._ends.unit_bytes:
                self._too_long(self._offset, self._buffer)
                self.seek_record()

    def _end_of_segment(self) -> int:
        """The end of the records that are complete; 0 if none is."""
        is_part = self._is_enough()
        buffer = self._buffer[: self._max_record_bytes + self._ends.unit_bytes] if is_part else self._buffer
        if self._stop is not None and self._offset + len(buffer) >= self._stop:
            end = self._ends.first_after(buffer, self._stop - self._offset - 1)
            if end:
                return end
        return len(buffer) if self._at_end and not is_part else self._ends.last(buffer)

    def _is_enough(self) -> bool:
        """Whether the buffer has the end of its first record, if that is not too long."""
        return self._is_exact and len(self._buffer) >= self._max_record_bytes + self._ends.unit_bytes

    def _read_on(self) -> None:
        reached = self._offset + len(self._buffer)
        # A long record is read in pieces as long as what is there already: joining them one by one would take ages.
        room = self._max_record_bytes + self._ends.unit_bytes - len(self._buffer)
        n = max(self._piece_bytes, min(len(self._buffer), room))
        if self._is_exact:
            n = min(n, max(room, 1))
        if self._stop is not None and reached < self._stop:
            n = min(n, self._stop + BEYOND_BYTES - reached)
        piece = self._stream.read(n)
        if not piece and self._least_size is not None and reached < self._least_size:
            name = getattr(self._stream, "name", "The file")
            raise ChangedFileError(
                f"{name} ends at byte {reached}, but was listed with at least {self._least_size} bytes."
            )
        self._at_end = not piece
        self._buffer = self._buffer + piece if self._buffer else piece

    def _drop(self, n: int) -> None:
        self._buffer = self._buffer[n:]
        self._offset += n

    def _is_done(self) -> bool:
        return self._stop is not None and self._offset >= self._stop


def _pass_over(offset: int, beginning: bytes) -> None:
    """Nobody need hear of a record that is too long."""


def cut_ranges(size: int, block_bytes: int, unit_bytes: int = 1) -> list[tuple[int, int]]:
    """Ranges of about `block_bytes`, evenly, none of which ends within a unit; none if there is nothing."""
    n = max(1, round(size / block_bytes))
    places = [size * i // n for i in range(n)]
    borders = sorted({*(place - place % unit_bytes for place in places), size})
    return list(pairwise(borders))


# What a window holds of a small block stays in the processor's cache; a third faster than 8 MiB.
_LOCAL_BLOCK_BYTES = 2 << 20
_STORED_BLOCK_BYTES = 8 << 20
_MAX_RECORD_BYTES = 64 << 20
_RAW_BYTES = 4096  # of a bad record, to show


class FileSource(ABC):
    """A source of text files, which are listed when they are first asked for, and then remembered, also in a pickle."""

    format: str
    is_plain = True
    """Whether reading runs only our code and that of known libraries."""

    def __init__(self, paths: Paths, options: FileOptions | None = None) -> None:
        self._paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self.options = options or FileOptions()
        self._max_record_bytes = self.options.max_record_bytes or _MAX_RECORD_BYTES
        self._files: dict[str, FileVersion] | None = None
        self._path_columns = PathColumns()
        self._blocks: tuple[Block, ...] | None = None
        self._codecs: dict[str, str | None] = {}
        self._is_lenient = False

    def lenient(self) -> Self:
        """The same source, but a file that cannot be split raises only when it is read: it becomes one block."""
        source = copy.copy(self)
        source._is_lenient, source._blocks = True, None
        return source

    def versions(self) -> list[FileVersion]:
        return list(self._listed().values())

    def blocks(self) -> Sequence[Block]:
        if self._blocks is None:
            cut = self._cut_leniently if self._is_lenient else self._cut
            self._blocks = tuple(block for file in self.versions() for block in cut(file))
        return self._blocks

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on; see `Source.read`."""
        yield from skip_rows(self._read(block, on_bad), first_row)
        check_unchanged(self._listed()[block.path])

    def describe(self) -> dict[str, Any]:
        files = self.versions()
        sizes = [file.size for file in files]
        return {
            "format": self.format,
            "files": len(files),
            "bytes": None if None in sizes else sum(size or 0 for size in sizes),
            "blocks": len(self.blocks()),
            "encoding": self.options.encoding,
            "compression": sorted({codec for file in files if (codec := self._codec(file))}),
        }

    @abstractmethod
    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        """All rows of a block."""

    def _listed(self) -> dict[str, FileVersion]:
        if self._files is None:
            files = list_files(self._paths, self.options)
            self._path_columns = find_path_columns(self._paths, files, self.options.hive_partitioning)
            self._files = {file.path: file for file in files}
        return self._files

    def _cut(self, file: FileVersion) -> list[Block]:
        """The blocks of a file: ranges of bytes that begin and end anywhere; one if it cannot be cut."""
        if not self._can_cut(file):
            return [] if file.size == 0 else [Block(file.path, 0, None, n_bytes=file.size or 0)]
        ranges = cut_ranges(file.size or 0, self._block_bytes(file), self._encoding().unit_bytes)
        return [Block(file.path, start, stop, n_bytes=stop - start) for start, stop in ranges]

    def _cut_leniently(self, file: FileVersion) -> list[Block]:
        try:
            return self._cut(file)
        except RecordError:
            return [Block(file.path, 0, file.size, n_bytes=file.size or 0)]

    def _block_bytes(self, file: FileVersion) -> int:
        return self.options.block_bytes or (_LOCAL_BLOCK_BYTES if is_local(file.path) else _STORED_BLOCK_BYTES)

    def _can_cut(self, file: FileVersion) -> bool:
        if file.size is None or self._codec(file) is not None or not self._can_cut_encoding():
            return False
        return file.size <= self._block_bytes(file) or can_seek(file, self.options)

    def _can_cut_encoding(self) -> bool:
        return self._encoding().can_cut

    def _encoding(self) -> TextEncoding:
        return find_encoding(self.options.encoding)

    def _codec(self, file: FileVersion) -> str | None:
        if file.path not in self._codecs:
            self._codecs[file.path] = self._find_codec(file)
        return self._codecs[file.path]

    def _find_codec(self, file: FileVersion) -> str | None:
        if self.options.compression != "auto":
            return self.options.compression
        name = file.path.rpartition("/")[2]
        if "." in name or file.size == 0:
            return codec_by_name(file.path)
        return codec_by_content(self._first_bytes(file, N_FIRST_BYTES))

    def _first_bytes(self, file: FileVersion, n: int) -> bytes:
        with open_range(file, 0, n, self.options) as opened:
            return opened.read(n)

    def _open(self, block: Block, start: int) -> tuple[BinaryIO, TextEncoding]:
        """The file of a block, open at `start`, decompressed, and how its bytes are to be read."""
        file, options = self._listed()[block.path], self.options
        encoding = self._encoding()
        if block.stop is not None:
            if encoding.needs_mark:
                encoding = encoding.as_marked(self._first_bytes(file, N_MARK_BYTES))
            read_to = block.stop + BEYOND_BYTES
            stream = open_range(file, start, read_to, options)
            return _refuse_compressed(stream, block) if start == 0 else stream, encoding
        codec = self._codec(file)
        stream = open_stream(file, options, codec)
        if codec is None:
            _refuse_compressed(stream, block)
        with _closed_if_broken(stream):
            encoding = encoding.as_marked(stream.peek(N_MARK_BYTES))
        if self._can_cut_encoding():
            return stream, encoding
        return as_utf8(stream, encoding, options.errors, block.path), find_encoding("utf-8")


def bad_record(block: Block, line: int, offset: int, raw: bytes, problem: BaseException | str) -> BadRecord:
    """A bad record of a text file: where it is, and what is wrong with it.

    Args:
        line: how many lines of the block come before it.
        offset: where it begins in the file, or in its decompressed content.
    """
    stop = "the end" if block.stop is None else block.stop
    named = block.where() if isinstance(block, Stretch) else f"{block.path}, bytes {block.start} to {stop}"
    where = f"{named}, line {line + 1} of these (at byte {offset})"
    error = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
    return BadRecord(where, raw[:_RAW_BYTES], error)


@contextmanager
def _closed_if_broken(stream: BinaryIO) -> Iterator[None]:
    """Close a stream whose first bytes cannot be read, which nobody else will."""
    try:
        yield
    except BaseException:
        stream.close()
        raise


def _refuse_compressed(stream: io.BufferedReader, block: Block) -> io.BufferedReader:
    """The stream, which is at its beginning.

    Raises:
        RecordError: it is compressed, but should not be.
    """
    codec = codec_by_content(stream.peek(N_FIRST_BYTES))
    if codec is None:
        return stream
    stream.close()
    raise RecordError(f"{block.path} is compressed, although its name does not say so: pass compression={codec!r}.")


_MOST_CURSORS = 2
_LOOK_BYTES = 1 << 12


class RecordSource(FileSource):
    """Records of text files.

    A file that cannot be cut is one block, which many readers can share: each takes some of its stretches, in ascending
    order, and passes over the bytes between them.
    """

    _piece_bytes: int
    _blank_before_first = b""
    """The bytes that may come before the first record, which is read with the first stretch all the same."""

    def __init__(self, paths: Paths, options: FileOptions | None = None) -> None:
        super().__init__(paths, options)
        self._cursors = _Cursors()
        self._lengths: dict[str, int] = {}
        self._broken: dict[str, int] = {}  # the stretch that could not be read: those behind it cannot, either

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        try:
            yield from super().read(block, first_row, on_bad)
        except Exception:
            if isinstance(block, Stretch):
                self._broken[block.path] = block.number
            raise
        if isinstance(block, Stretch) and self._broken.get(block.path, -1) <= block.number:
            self._broken.pop(block.path, None)

    def stretch(self, block: Block, number: int) -> Stretch | None:
        """Part `number` of a block that cannot be cut: the records that start in `stretch_bytes` of decoded content.

        Any number is valid; `ends_in` tells which is the last. None if the block is a range of bytes.
        """
        if block.stop is not None:
            return None
        unit = self._encoding().unit_bytes
        n_bytes = -(-self.options.stretch_bytes // unit) * unit
        return Stretch(block.path, number * n_bytes, (number + 1) * n_bytes, number=number)

    def ends_in(self, stretch: Block) -> bool:
        """Whether the content of the file ends in this stretch or before it; known once it was read to its end here.

        Where it cannot be read any further, it ends, too.
        """
        if isinstance(stretch, Stretch) and stretch.number >= self._broken.get(stretch.path, stretch.number + 1):
            return True
        length = self._lengths.get(stretch.path)
        return length is not None and length <= stretch.stop

    def close(self) -> None:
        """Close the files that this thread has open between two stretches; reading another one opens them again."""
        self._cursors.close()

    @abstractmethod
    def _ends(self, encoding: TextEncoding) -> RecordEnds:
        """Finds where records end."""

    def _finds_starts(self) -> bool:
        """Whether the first record behind any byte is found without reading what comes before it."""
        return True

    def _segments(self, block: Block, too_long: TooLong) -> Generator[tuple[Segment, TextEncoding], None, None]:
        """The records that start in a block, without a byte order mark."""
        if isinstance(block, Stretch):
            yield from self._stretch_segments(block, too_long)
            return
        unit = self._encoding().unit_bytes if self._can_cut_encoding() else 1
        # Whether a record starts at `start` shows in what comes before it.
        start = max(0, block.start - unit) if self._finds_starts() else block.start
        stream, encoding = self._open(block, start)
        with stream:
            reader = self._reader(stream, encoding, start, block.stop, too_long, least_size=block.stop)
            if start < block.start:
                reader.seek_record()
            elif start == 0:
                reader.skip_mark(encoding.mark)
            for segment in reader:
                yield segment, encoding

    def _stretch_segments(
        self, stretch: Stretch, too_long: TooLong
    ) -> Generator[tuple[Segment, TextEncoding], None, None]:
        length = self._lengths.get(stretch.path)
        if length is not None and length <= stretch.start:
            return
        cursor = self._cursors.take(stretch.path, stretch.start) or self._open_cursor(stretch)
        stop = max(stretch.stop, cursor.first + 1)
        try:
            reader = self._reader(
                cursor.stream, cursor.encoding, cursor.offset, stop, too_long, already_read=cursor.unread
            )
            self._seek(reader, cursor, stretch)
            for segment in reader:
                yield segment, cursor.encoding
            is_end = reader.ends_before(stretch.stop)
        except BaseException:
            cursor.close()
            raise
        cursor.offset, cursor.unread = reader.unread
        cursor.is_in_record, cursor.reached = reader.is_in_record, stretch.stop
        if is_end:
            self._lengths[stretch.path] = cursor.offset + len(cursor.unread)
            cursor.close()
        else:
            self._cursors.keep(stretch.path, cursor)

    def _reader(
        self,
        stream: BinaryIO,
        encoding: TextEncoding,
        start: int,
        stop: int | None,
        too_long: TooLong,
        least_size: int | None = None,
        already_read: bytes = b"",
    ) -> SegmentReader:
        return SegmentReader(
            stream,
            start,
            stop,
            self._ends(encoding),
            self._max_record_bytes,
            too_long,
            self._piece_bytes,
            least_size,
            already_read,
            is_exact=not self._finds_starts(),
        )

    def _seek(self, reader: SegmentReader, cursor: _Cursor, stretch: Stretch) -> None:
        """Go to the first record that starts in a stretch."""
        unit = self._ends(cursor.encoding).unit_bytes
        start = max(stretch.start, cursor.first + unit) if stretch.start > 0 else 0
        if not self._finds_starts():
            if cursor.is_in_record:
                reader.seek_record()
            reader.skip_records(start)
        elif cursor.is_in_record or (start > cursor.offset and stretch.start > cursor.reached):
            reader.skip_bytes(start - unit)
            reader.seek_record()

    def _open_cursor(self, stretch: Stretch) -> _Cursor:
        stream, encoding = self._open(Block(stretch.path, 0, None), 0)
        with _closed_if_broken(stream):
            content = more = stream.read(_LOOK_BYTES)
            while more and not content.removeprefix(encoding.mark).lstrip(self._blank_before_first):
                content += (more := stream.read(_LOOK_BYTES))
        behind_mark = content.removeprefix(encoding.mark)
        first = len(content) - len(behind_mark.lstrip(self._blank_before_first))
        return _Cursor(stream, encoding, first, len(content) - len(behind_mark), behind_mark)


@dataclass
class _Cursor:
    """One pass over the content of a file.

    Attributes:
        first: where the first record starts.
        offset: of what is unread. No record starts between `reached` and it.
        unread: what was read of the stream, but of no stretch so far.
        reached: where the last stretch ended that was read.
        is_in_record: whether a record that starts before `reached` goes on at `offset`.
    """

    stream: BinaryIO
    encoding: TextEncoding
    first: int
    offset: int
    unread: bytes
    reached: int = 0
    is_in_record: bool = False

    def __post_init__(self) -> None:
        self.close = weakref.finalize(self, self.stream.close)
        self.close.atexit = False


class _Cursors(threading.local):
    """The cursors of one thread, which keeps a few open. Copies of it, in other processes too, begin with none."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._open: dict[str, _Cursor] = {}

    def __reduce__(self) -> tuple[type[_Cursors], tuple[()]]:
        return _Cursors, ()

    def take(self, path: str, start: int) -> _Cursor | None:
        """The cursor of a file, unless it is past `start`."""
        self._forget_inherited()
        cursor = self._open.pop(path, None)
        if cursor is not None and cursor.reached > start:
            cursor.close()
            return None
        return cursor

    def keep(self, path: str, cursor: _Cursor) -> None:
        self._open[path] = cursor
        while len(self._open) > _MOST_CURSORS:
            self._open.pop(next(iter(self._open))).close()

    def close(self) -> None:
        self._forget_inherited()
        while self._open:
            self._open.popitem()[1].close()

    def _forget_inherited(self) -> None:
        """After a fork: to close what another process reads might disturb it."""
        if self._pid != os.getpid():
            _inherited.append(self._open)
            self._open, self._pid = {}, os.getpid()


_inherited: list[dict[str, _Cursor]] = []
