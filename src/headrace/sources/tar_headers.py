"""One member of a tar archive: its header, and the headers before it that say more about it."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from headrace.sources.guessing import advise_reader
from headrace.sources.tar_window import ArchiveWindow, DamagedArchiveError

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
_LOOKED_AT_BYTES = 1 << 16  # of what is no archive
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


class Step(NamedTuple):
    """What was found at a place: a regular file or something that is not one; and the place behind it."""

    member: Member | None
    next_place: int


def read_member(window: ArchiveWindow, start: int) -> Step | None:
    """What the headers from `start` on tell; None at the end of the archive.

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


def _describe(window: ArchiveWindow, header: bytes, notes: dict[bytes, bytes], plain: Member, kind: bytes) -> Step:
    """The member with everything known about it."""
    if kind in _WITHOUT_DATA:
        return Step(None, plain.data)
    size = _decimal(notes.get(b"size", plain.size), plain.start)
    data = _after_sparse_map(window, header, plain.data) if kind == _SPARSE else plain.data
    next_place = data + padded(size)
    if kind not in _REGULAR and kind != _SPARSE:
        return Step(None, next_place)
    is_sparse = kind == _SPARSE or any(note.startswith(b"GNU.sparse") for note in notes)
    return Step(Member(notes.get(b"path", plain.name), plain.start, data, size, is_sparse), next_place)


def _check_beginning(window: ArchiveWindow, header: bytes) -> None:
    """See that a file is an archive, by the magic of its first header, or else by its checksum."""
    if header[_MAGIC] == b"ustar":
        return
    try:
        _parse(header, 0)
    except DamagedArchiveError as error:
        advice = advise_reader(window.get(0, _LOOKED_AT_BYTES))
        raise DamagedArchiveError(f"this is no tar archive: {advice or 'it has no tar header'}", header) from error


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
