"""Where the record batches of Arrow files and streams are, and how many rows each has, from the messages before them.

pyarrow tells only by reading a batch, or by mapping the file into memory; and a mapped file that somebody cuts off
meanwhile ends the process.
"""

from __future__ import annotations

import struct
from typing import Protocol

_MAGIC = b"ARROW1"
_TAIL_BYTES = 4 + len(_MAGIC)  # the length of the footer, and the mark
_CONTINUES = 0xFFFFFFFF
_BLOCK = struct.Struct("<qi4xq")  # where a message is, how long it is, and how long the body behind it
_FOOTER_BATCHES, _MESSAGE_HEADER, _BATCH_ROWS, _BATCH_COLUMNS = 3, 2, 0, 1  # fields of the tables of Arrow's format


_MESSAGE_KIND, _MESSAGE_BODY_BYTES = 1, 3
_SCHEMA_KIND, _BATCH_KIND = 1, 3
_MOST_MESSAGE_BYTES = 1 << 26


class _File(Protocol):
    def seek(self, position: int, whence: int = 0, /) -> int: ...

    def read(self, n: int, /) -> bytes: ...


def rows_of_batches(file: _File) -> list[int]:
    """The number of rows of each record batch, in order.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        return [_rows_of(_read(file, offset, length)) for offset, length, _ in _blocks(_footer(file))]
    except struct.error as error:
        raise ValueError(f"the footer is damaged: {error}") from error


def batches_of_stream(file: _File) -> list[tuple[int, int, int]] | None:
    """Where each record batch of a stream begins and ends, and how many rows it has; None if dictionaries precede one.

    Raises:
        ValueError: the stream is damaged.
    """
    place, size = 0, file.seek(0, 2)
    found: list[tuple[int, int, int]] = []
    try:
        while place + 8 <= size:
            mark, length = struct.unpack("<II", _read(file, place, 8))
            if mark != _CONTINUES:  # an old stream, or what follows its end
                return None if mark else found
            if not length:
                break
            if length > min(size - place, _MOST_MESSAGE_BYTES):
                raise ValueError(f"the message at byte {place} cannot have {length} bytes")
            message = _read(file, place, 8 + length)
            kind, n_body = _kind_of(message[8:])
            end = place + 8 + length + n_body
            if n_body < 0 or end > size:
                raise ValueError(f"the stream ends within the message at byte {place}")
            if kind == _BATCH_KIND:
                found.append((place, end, _rows_of(message)))
            elif kind != _SCHEMA_KIND:
                return None  # dictionaries
            place = end
    except struct.error as error:
        raise ValueError(f"the message at byte {place} is damaged: {error}") from error
    return found


def _kind_of(table: bytes) -> tuple[int, int]:
    """What a message is, and how long the body behind it is."""
    message = _follow(table, 0)
    kind, n_body = _field(table, message, _MESSAGE_KIND), _field(table, message, _MESSAGE_BODY_BYTES)
    return (
        0 if kind is None else table[kind],
        0 if n_body is None else int(struct.unpack_from("<q", table, n_body)[0]),
    )


def _footer(file: _File) -> bytes:
    size = file.seek(0, 2)
    (length,) = struct.unpack_from("<i", _read(file, size - _TAIL_BYTES, _TAIL_BYTES))
    return _read(file, size - _TAIL_BYTES - length, length)


def _read(file: _File, start: int, n: int) -> bytes:
    if start < 0 or n < 0:
        raise ValueError(f"a part of the file cannot have {n} bytes from byte {start} on")
    file.seek(start)
    return file.read(n)


def _blocks(footer: bytes) -> list[tuple[int, int, int]]:
    vector = _field(footer, _follow(footer, 0), _FOOTER_BATCHES)
    if vector is None:
        return []
    vector = _follow(footer, vector)
    (n,) = struct.unpack_from("<I", footer, vector)
    if n * _BLOCK.size > len(footer):
        raise ValueError(f"the footer is too short for {n} record batches")
    return [_BLOCK.unpack_from(footer, vector + 4 + i * _BLOCK.size) for i in range(n)]


def _rows_of(message: bytes) -> int:
    start = 8 if struct.unpack_from("<I", message)[0] == _CONTINUES else 4  # files written before 2019 have no mark
    table = message[start:]
    header = _field(table, _follow(table, 0), _MESSAGE_HEADER)
    if header is None:
        raise ValueError("the message of a record batch has no header")
    batch = _follow(table, header)
    rows, columns = _field(table, batch, _BATCH_ROWS), _field(table, batch, _BATCH_COLUMNS)
    n = 0 if rows is None else int(struct.unpack_from("<q", table, rows)[0])
    n_first = n
    if columns is not None and struct.unpack_from("<I", table, columns := _follow(table, columns))[0]:
        (n_first,) = struct.unpack_from("<q", table, columns + 4)
    if n < 0 or n != n_first:
        raise ValueError(f"a record batch has {n} rows, and its first column {n_first}")
    return n


# Tables are FlatBuffers: each begins with the way back to a list of where its fields are.


def _follow(buffer: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", buffer, place)[0])


def _field(buffer: bytes, table: int, number: int) -> int | None:
    """Where a field of a table is; None if it has its default."""
    fields = table - struct.unpack_from("<i", buffer, table)[0]
    entry = 4 + 2 * number
    if fields < 0 or struct.unpack_from("<H", buffer, fields)[0] <= entry:
        return None
    offset = struct.unpack_from("<H", buffer, fields + entry)[0]
    return table + offset if offset else None
