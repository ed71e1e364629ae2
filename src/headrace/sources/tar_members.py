"""Walks the headers of a tar archive. Nothing is ever extracted, and nothing but regular files is ever looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.sources.tar_headers import EXTENDED, HEADER_BYTES, Member, read_member
from headrace.sources.tar_window import ArchiveWindow

# The fields of a header in each block of an archive; only some of the blocks are headers.
_BLOCK = np.dtype(
    {
        "names": ["bytes", "name", "size", "after_size", "checksum", "kind", "magic", "magic_end", "prefix"],
        "formats": [("u1", HEADER_BYTES), "S100", ("u1", 11), "u1", ("u1", 6), "u1", "<u4", "u1", "u1"],
        "offsets": [0, 0, 124, 135, 148, 156, 257, 261, 345],
        "itemsize": HEADER_BYTES,
    }
)
_PLAIN_BLOCK = np.dtype(f"V{HEADER_BYTES}")
_MAGIC, _MAGIC_END = int.from_bytes(b"usta", "little"), ord("r")
_OCTAL = 8 ** np.arange(10, -1, -1)
# A checksum is six digits, a NUL and a space, all of which count as spaces in it. So the sum of all bytes of a header
# is this, and for each digit its value and that of its byte.
_SUM_WITHOUT_DIGITS = sum(b"000000\0 ") - sum(b" " * 8)
_CHECKSUM_DIGITS = _OCTAL[-6:] + 1
_NOTE = ord(EXTENDED)
_NOTES_THAT_MATTER = b" path=", b" size=", b" GNU.sparse"


def _among(values: bytes) -> npt.NDArray[np.bool_]:
    """Whether a byte is one of these, by its value."""
    return np.isin(np.arange(256), list(values))


_IS_KIND = _among(b"0\0" + EXTENDED)  # a regular file, or a note on the next one
_IS_END = _among(b"\0 ")


class Members(NamedTuple):
    """Regular files that follow each other, as columns of what a `Member` says.

    Attributes:
        is_sparse: of all of them; a sparse one comes alone.
    """

    names: list[bytes]
    starts: list[int]
    datas: list[int]
    sizes: list[int]
    is_sparse: bool = False

    def part(self, start: int, stop: int) -> Members:
        names, starts, datas, sizes, is_sparse = self
        return Members(names[start:stop], starts[start:stop], datas[start:stop], sizes[start:stop], is_sparse)


class _Headers(NamedTuple):
    """Headers that follow each other, as arrays: places, counted in blocks, fields, and the sizes of contents."""

    places: npt.NDArray[np.int64]
    fields: npt.NDArray[Any]
    sizes: npt.NDArray[np.int64]

    def first(self, n: int) -> _Headers:
        return self if n == len(self.places) else _Headers(self.places[:n], self.fields[:n], self.sizes[:n])


def walk(window: ArchiveWindow, start: int = 0, stop: int | None = None) -> Iterator[Members]:
    """The regular files whose headers lie in [start, stop), in order: as many at a time as are in memory.

    The contents of all but the last one of these are in memory, too, until the next are asked for.

    Raises:
        DamagedArchiveError: there is no header where one should be; what came before is good.
    """
    place = start
    while stop is None or place < stop:
        headers = _ordinary_headers(window, place, stop)
        if len(headers.places):
            yield _members(headers, place)
            place += HEADER_BYTES * int(_behind(headers.places[-1], headers.sizes[-1]))
            continue
        step = read_member(window, place)
        if step is None:
            return
        if step.member is not None:
            yield _alone(step.member)
        place = step.next_place


def _alone(member: Member) -> Members:
    return Members([member.name], [member.start], [member.data], [member.size], member.is_sparse)


def _ordinary_headers(window: ArchiveWindow, place: int, stop: int | None) -> _Headers:
    """The headers from `place` on that are in memory, and tell all there is to know; the last one is a member's."""
    memory, offset = window.hold(place, HEADER_BYTES)
    length = len(memory) - offset if stop is None else min(len(memory) - offset, stop - place)
    headers = _find_headers(np.frombuffer(memory, _BLOCK, length // HEADER_BYTES, offset))
    notes = np.flatnonzero(headers.fields["kind"] == _NOTE).tolist()
    for i in notes:  # most are times and owners, which do not matter here
        start, size = offset + HEADER_BYTES * (int(headers.places[i]) + 1), int(headers.sizes[i])
        note = memory[start : start + size]
        if len(note) < size or any(key in note for key in _NOTES_THAT_MATTER):
            return headers.first(i)
    n = len(headers.places)
    return headers.first(n - 1) if notes and notes[-1] == n - 1 else headers


def _find_headers(blocks: npt.NDArray[Any]) -> _Headers:
    """The ordinary headers from the first block on.

    What looks like a header may be content. So each must be where the one before says that the next one is.
    """
    places = np.flatnonzero(blocks["magic"] == _MAGIC)
    fields = blocks.view(_PLAIN_BLOCK).take(places).view(_BLOCK)  # together, so that they are fast to get at
    digits = fields["size"] - ord("0")
    sizes = digits @ _OCTAL
    # Nearly all are a regular file or a note, with a short name and a size of eleven digits.
    is_right = _are_octal(digits) & _IS_END[fields["after_size"]] & _IS_KIND[fields["kind"]]
    is_right &= (fields["prefix"] == 0) & (fields["magic_end"] == _MAGIC_END)
    is_right &= _have_right_sums(fields)
    is_right[1:] &= places[1:] == _behind(places[:-1], sizes[:-1])
    is_right[:1] &= places[:1] == 0
    n = len(is_right) if is_right.all() else int(is_right.argmin())
    return _Headers(places, fields, sizes).first(n)


def _have_right_sums(fields: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether the checksums of headers are right, and written as usual."""
    expected = (fields["checksum"] - ord("0")) @ _CHECKSUM_DIGITS
    expected += _SUM_WITHOUT_DIGITS
    # Sums are of 16 bits, since those are the fastest; to be off by 65,536, half the header would have to be wrong.
    return np.asarray(fields["bytes"].sum(axis=1, dtype=np.uint16) == expected.astype(np.uint16))


def _are_octal(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Whether all digits of a number are octal, for each number; mostly all are, which is seen much faster."""
    if digits.max(initial=0) < 8:
        return np.ones(len(digits), np.bool_)
    return np.asarray(digits.max(axis=1) < 8)


def _behind(places: Any, sizes: Any) -> Any:
    """The places behind the contents of headers."""
    return places + 1 + -(-sizes // HEADER_BYTES)


def _members(headers: _Headers, place: int) -> Members:
    """The regular files among headers; a file begins with the note before it."""
    places, fields, sizes = headers
    starts = places
    is_note = fields["kind"] == _NOTE
    if is_note.any():
        starts = np.where(np.append(False, is_note[:-1]), np.append(0, places[:-1]), places)
        starts, places, fields, sizes = (column[~is_note] for column in (starts, places, fields, sizes))
    names: list[bytes] = fields["name"].tolist()
    if b"\0" in b"".join(names):
        names = [name.partition(b"\0")[0] for name in names]
    datas = place + HEADER_BYTES * (places + 1)
    return Members(names, (place + HEADER_BYTES * starts).tolist(), datas.tolist(), sizes.tolist())
