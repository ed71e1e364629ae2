"""A part of an archive in memory, that moves forward over it."""

from __future__ import annotations

from typing import BinaryIO

from headrace.base.errors import RecordError

_LEAST_READ_BYTES = 1 << 16
_MOST_READ_BYTES = 1 << 19  # more than that would be memory that is new each time, and has to be cleared first


class DamagedArchiveError(Exception):
    """The archive cannot be read beyond a place: it ends too early, or is no tar archive.

    Attributes:
        found: what is there instead of what should be, if anything.
    """

    def __init__(self, message: str, found: bytes = b"") -> None:
        super().__init__(message)
        self.found = found


class ArchiveWindow:
    """Reads an archive from `start` to `stop`, a few megabytes ahead; passes over content that nobody asks for.

    Guarantees: bytes are read once, in order; where the file can seek, not all of them.
    """

    def __init__(self, file: BinaryIO, start: int = 0, stop: int | None = None) -> None:
        self._file = file
        self._size = file.seek(0, 2) if file.seekable() else None
        if self._size is not None:
            file.seek(start)
        self._stop = stop
        self._begin = start
        self._memory = b""
        self._read_bytes = _LEAST_READ_BYTES

    def get(self, start: int, size: int) -> bytes:
        """The `size` bytes from `start` on, which must not lie before the last ones asked for; fewer at the end."""
        offset = start - self._begin
        missing = offset + size - len(self._memory)
        if missing <= 0:
            return self._memory[offset : offset + size]
        if offset < len(self._memory):  # no more than is missing, since all would be copied
            reached = self._begin + len(self._memory)
            self._begin, self._memory = start, self._memory[offset:] + self._read(reached, missing)
        else:
            self._move(start, size)
        return self._memory[:size]

    def hold(self, start: int, size: int) -> tuple[bytes, int]:
        """What is in memory, with at least `size` bytes from `start` on (fewer at the end), and where in it that is.

        Raises:
            DamagedArchiveError: the archive ends before `start`.
        """
        offset = start - self._begin
        if offset + size > len(self._memory):
            self._move(start, size)
            return self._memory, 0
        return self._memory, offset

    def _move(self, start: int, size: int) -> None:
        """Forget what lies before `start`, and read on: much if all is wanted, little if most is passed over."""
        reached = self._begin + len(self._memory)
        is_far = start - reached > self._read_bytes
        self._read_bytes = _LEAST_READ_BYTES if is_far else min(self._read_bytes * 4, _MOST_READ_BYTES)
        kept = self._memory[start - self._begin :]
        if start > reached:
            self._pass_over(reached, start)
            reached = start
        self._begin, self._memory = start, kept + self._read(reached, max(size - len(kept), self._read_bytes))

    def _read(self, place: int, size: int) -> bytes:
        missing = size if self._stop is None else min(size, self._stop - place)
        pieces = []
        while missing > 0 and (piece := self._read_some(missing)):
            pieces.append(piece)
            missing -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _pass_over(self, place: int, target: int) -> None:
        if self._size is not None:
            if target > self._size:
                raise _ends_within_a_member(self._size)
            self._file.seek(target)
            return
        while place < target:
            piece = self._read_some(min(target - place, _MOST_READ_BYTES))
            if not piece:
                raise _ends_within_a_member(place)
            place += len(piece)

    def _read_some(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except RecordError as error:  # of the compression
            raise DamagedArchiveError(str(error)) from error


def _ends_within_a_member(size: int) -> DamagedArchiveError:
    return DamagedArchiveError(f"the archive ends at byte {size}, in the middle of a member")
