"""Tar archives as bytes: their headers and members, seen through a window."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.base.errors import RecordError
from headrace.sources.guessing import advise_reader

_LEAST_READ_BYTES = 1 << 16
_MOST_READ_BYTES = 1 << 19  # more than that would be memory that is new each time, and has to be cleared first


class DamagedArchiveError(Exception):
    """The archive cannot be read beyond a place: it ends too early, or is not a tar archive.

    Attributes:
        found: what is there instead of what should be, if anything.
    """

    def __init__(self, message: str, found: bytes = b"") -> None:
        super().__init__(message)
        self.found = found


class ArchiveWindow:
    """Reads an archive from `start` to `stop`, a few megabytes ahead; skips content that is not asked for.

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
        """The `size` bytes from `start` on, which must not be before the last ones asked for; fewer at the end."""
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
        """Forget what lies before `start`, and read on: much if all is wanted, little if most is skipped."""
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


HEADER_BYTES = 512
_MOST_NAME_BYTES = 1 << 20  # of a long name, or of the extended header that holds it

_FIELDS = struct.Struct("100s24x12s12x8sc100x6s82x155s12x")  # name, size, checksum, type, magic, prefix
_ZEROS = bytes(HEADER_BYTES)
_CHECKSUM = slice(148, 156)
_BASE_OF_ADLER = 65521
_REGULAR = frozenset((b"0", b"\0", b"7"))
_WITHOUT_DATA = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))  # links, devices, folders, pipes: whatever `size` says
_SPARSE = b"S"
_MAGIC = slice(257, 262)
_LOOKED_AT_BYTES = 1 << 16  # of what is not an archive
_LONG_NAME, EXTENDED = b"L", b"x"
_BEFORE_A_MEMBER = frozenset((_LONG_NAME, EXTENDED, b"K", b"g"))  # the last two: long links, comments on all members


class Member(NamedTuple):
    """A regular file in an archive.

    Attributes:
        start: where its first header begins.
        data: where its content begins.
        size: how long its content is.
        is_sparse: whether the content is stored in some packed form, which is not unpacked here.
    """

    name: bytes
    start: int
    data: int
    size: int
    is_sparse: bool


class FoundMember(NamedTuple):
    """What was found at a place: a regular file or something that is not one; and the place behind it."""

    member: Member | None
    next_place: int


def read_member(window: ArchiveWindow, start: int) -> FoundMember | None:
    """The member that the headers from `start` on describe; None at the end of the archive.

    Raises:
        DamagedArchiveError: there is no header.
    """
    place = start
    notes: dict[bytes, bytes] = {}  # what headers before the member's own say about it
    while (header := window.get(place, HEADER_BYTES)) and header != _ZEROS:
        if place == 0:
            _check_beginning(window, header)
        name, size, kind = _parse(header, place)
        data = place + HEADER_BYTES
        if kind not in _BEFORE_A_MEMBER:
            return _describe(window, header, notes, Member(name, start, data, size, kind == _SPARSE), kind)
        notes |= _read_notes(window, data, size, kind)
        place = data + padded(size)
    return None


def _describe(
    window: ArchiveWindow, header: bytes, notes: dict[bytes, bytes], plain: Member, kind: bytes
) -> FoundMember:
    """The member with everything known about it."""
    if kind in _WITHOUT_DATA:
        return FoundMember(None, plain.data)
    size = _decimal(notes.get(b"size", plain.size), plain.start)
    data = _after_sparse_map(window, header, plain.data) if kind == _SPARSE else plain.data
    next_place = data + padded(size)
    if kind not in _REGULAR and kind != _SPARSE:
        return FoundMember(None, next_place)
    is_sparse = kind == _SPARSE or any(note.startswith(b"GNU.sparse") for note in notes)
    return FoundMember(Member(notes.get(b"path", plain.name), plain.start, data, size, is_sparse), next_place)


def _check_beginning(window: ArchiveWindow, header: bytes) -> None:
    """See that a file is an archive, by the magic of its first header, or else by its checksum."""
    if header[_MAGIC] == b"ustar":
        return
    try:
        _parse(header, 0)
    except DamagedArchiveError as error:
        advice = advise_reader(window.get(0, _LOOKED_AT_BYTES))
        raise DamagedArchiveError(f"this is not a tar archive: {advice or 'it has no tar header'}", header) from error


def _parse(header: bytes, place: int) -> tuple[bytes, int, bytes]:
    """The name, the size and the type in a header."""
    if len(header) < HEADER_BYTES:
        raise _ends_within_a_header(place, header)
    name, size, checksum, kind, magic, prefix = _FIELDS.unpack(header)
    if not _is_sum(_octal(checksum, place), header):
        raise _damaged_header(place, header) if magic[:5] == b"ustar" else _no_header(place)
    name = name.partition(b"\0")[0]
    if prefix[0] and magic == b"ustar\0":
        name = prefix.partition(b"\0")[0] + b"/" + name
    return name, _octal(size, place), kind


def _is_sum(checksum: int, header: bytes) -> bool:
    """Whether this is the sum of the bytes of a header, with spaces for the checksum; or, of old, of signed ones."""
    expected = checksum + sum(header[_CHECKSUM]) - 8 * ord(" ")
    # The lower half of an Adler-32 is one more than the sum: much faster than adding up 512 numbers here.
    if (zlib.adler32(header) - expected - 1) & 0xFFFF == 0 and expected < _BASE_OF_ADLER:
        return True
    unsigned = sum(header)
    n_negative = sum(byte >= 128 for byte in header[: _CHECKSUM.start] + header[_CHECKSUM.stop :])
    return expected in (unsigned, unsigned - 256 * n_negative)


def _octal(field: bytes, place: int) -> int:
    """A number of a header: octal digits, or bytes behind a first one of 128 if it is too large for those."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b"\0 ")
    if digits and not digits.isdigit():
        raise _no_header(place)
    try:
        return int(digits or b"0", 8)
    except ValueError:
        raise _no_header(place) from None


def _decimal(number: bytes | int, place: int) -> int:
    """A number of an extended header."""
    if isinstance(number, int) or number.isdigit():
        return int(number)
    raise _no_header(place)


def _read_notes(window: ArchiveWindow, data: int, size: int, kind: bytes) -> dict[bytes, bytes]:
    """What the header before a member says of it that matters here: its name, its size, whether it is sparse."""
    if kind not in (_LONG_NAME, EXTENDED):
        return {}
    if size > _MOST_NAME_BYTES:
        raise DamagedArchiveError(f"the extended header at byte {data} has {size} bytes; no name is that long")
    content = window.get(data, size)
    if kind == _LONG_NAME:
        return {b"path": content.partition(b"\0")[0]}
    return _records(content, data)


def _records(content: bytes, place: int) -> dict[bytes, bytes]:
    """The records of an extended header, each written as: its length, a space, key, "=", value, newline."""
    records = {}
    while content:
        length = _decimal(content.partition(b" ")[0], place)
        record, content = content[:length], content[length:]
        key, separator, value = record.partition(b" ")[2].partition(b"=")
        if not separator or not value.endswith(b"\n"):
            raise _no_header(place)
        records[key] = value[:-1]
    return records


def _after_sparse_map(window: ArchiveWindow, header: bytes, data: int) -> int:
    """Where the content of a sparse member begins: behind the blocks that continue its header."""
    more = header[482]
    while more:
        block = window.get(data, HEADER_BYTES)
        if len(block) < HEADER_BYTES:
            raise _ends_within_a_header(data, block)
        more = block[504]
        data += HEADER_BYTES
    return data


def padded(size: int) -> int:
    """The room that content of this size takes."""
    return -(-size // HEADER_BYTES) * HEADER_BYTES


def _ends_within_a_header(place: int, header: bytes) -> DamagedArchiveError:
    end = place + len(header)
    return DamagedArchiveError(f"the archive ends at byte {end}, in the middle of a header", header)


def _damaged_header(place: int, header: bytes) -> DamagedArchiveError:
    return DamagedArchiveError(f"the header at byte {place} is damaged: its checksum is not that of its bytes", header)


def _no_header(place: int) -> DamagedArchiveError:
    return DamagedArchiveError(f"there is no tar header at byte {place}")


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
_MAGIC_START, _MAGIC_END = int.from_bytes(b"usta", "little"), ord("r")
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
    """The headers from `place` on that are in memory and complete; the last one is a member's."""
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
    places = np.flatnonzero(blocks["magic"] == _MAGIC_START)
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
