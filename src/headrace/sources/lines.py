"""Whole lines out of any range of bytes, without decoding anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO, Protocol

from headrace.base.errors import ChangedFileError

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


@dataclass(frozen=True, slots=True)
class LineEnds:
    """Lines end with a newline, whose bytes lie at a multiple of their number."""

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


@dataclass(frozen=True, slots=True)
class Segment:
    """Some whole records, as they lie in the file.

    Attributes:
        offset: where in the file, or in its decompressed content, they begin.
        content: the records, each with its end; only the last one of a file may have none.
        is_rest: whether the file ended before the last record did.
    """

    offset: int
    content: bytes
    is_rest: bool = False


TooLong = Callable[[int, bytes], None]
"""Hears where a record begins that is too long, and its beginning; what it does not refuse is left out."""


class SegmentReader:
    """Reads the records that start in a range, a segment at a time.

    Guarantees: the segments of neighbouring ranges have each record exactly once. At most `max_record_bytes` and a
    piece are held.

    Args:
        stream: at `start`.
        start: where the range begins; a record must begin there too, unless `seek_record` is called.
        stop: where it ends, exclusive; None for the end of the stream.
        too_long: is called for a record that has no end within `max_record_bytes`.
        piece_bytes: how much is read at a time.
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
    ) -> None:
        self._stream = stream
        self._stop = self._least_size = stop
        self._ends = ends
        self._max_record_bytes = max_record_bytes
        self._too_long = too_long
        self._piece_bytes = piece_bytes
        self._offset = start  # of the buffer
        self._buffer = b""
        self._at_end = False

    def skip_mark(self, mark: bytes) -> None:
        """Pass over a byte order mark, if the file begins with it; the record behind it starts in this range."""
        self._buffer = self._stream.read(len(mark))
        if mark and self._buffer == mark:
            self._drop(len(mark))
            self._stop = None if self._stop is None else max(self._stop, self._offset + 1)

    def seek_record(self) -> None:
        """Pass over what is left of a record that starts before the range."""
        while not (end := self._ends.first_after(self._buffer, 0)):
            if self._at_end or self._is_done():
                self._drop(len(self._buffer))
                return
            self._drop(len(self._buffer) - len(self._buffer) % self._ends.unit_bytes)
            self._read_on()
        self._drop(end)

    def __iter__(self) -> Iterator[Segment]:
        while not self._is_done() and (self._buffer or not self._at_end):
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
        """Where the records end that can be handed out now; 0 if none is whole yet."""
        reached = self._offset + len(self._buffer)
        if self._stop is not None and reached >= self._stop:
            end = self._ends.first_after(self._buffer, self._stop - self._offset - 1)
            if end:
                return end
        return len(self._buffer) if self._at_end else self._ends.last(self._buffer)

    def _read_on(self) -> None:
        reached = self._offset + len(self._buffer)
        # A long record is read in pieces as long as what is there already: joining them one by one would take ages.
        room = self._max_record_bytes + self._ends.unit_bytes - len(self._buffer)
        n = max(self._piece_bytes, min(len(self._buffer), room))
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


def cut_ranges(size: int, block_bytes: int, unit_bytes: int = 1) -> list[tuple[int, int]]:
    """Ranges of about `block_bytes`, evenly, none of which ends within a unit; none if there is nothing."""
    n = max(1, round(size / block_bytes))
    places = [size * i // n for i in range(n)]
    borders = sorted({*(place - place % unit_bytes for place in places), size})
    return list(pairwise(borders))
