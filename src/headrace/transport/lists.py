"""Lists of strings and of bytes, packed in one go.

Pickle takes up each string by itself, notes it in case it comes again, and copies it twice.
"""

from __future__ import annotations

import marshal
import pickle
from array import array
from collections.abc import Callable
from typing import Any, final

import numpy as np

from headrace.base.later_column import Allocate, Columns, LaterColumn
from headrace.base.packed_bytes import PackedBytes, layout_of

_FEWEST = 16  # strings, for which looking at them is worth it
_MOST_FIELDS = 64  # of a batch that are looked at
_LONG = 512  # bytes on average, above which they are copied into shared memory at once


def pack_lists(batch: Any, allocate: Allocate) -> Any:
    """The batch, whose lists of `str` and `bytes` are packed; it itself may be one, or have some as its fields.

    Pickling what this gives, and unpickling that, makes an equal batch. The batch itself is not changed.
    """
    kind = type(batch)
    if isinstance(batch, Columns):
        return batch.packed(lambda column: _pack_column(column, allocate))
    if kind is list:
        packed = _pack_nested(batch) if batch and type(batch[0]) is list else _pack(batch, allocate)
        if packed is not batch:
            return packed
    if kind in (list, tuple) and len(batch) <= _MOST_FIELDS:
        fields = [_pack_fields(field, allocate) for field in batch]
        return kind(fields) if any(a is not b for a, b in zip(fields, batch, strict=True)) else batch
    return _pack_fields(batch, allocate)


def _pack_fields(fields: Any, allocate: Allocate) -> Any:
    """The same, packed if it is a list of `str` or `bytes`, or a dict that has some."""
    if type(fields) is not dict or len(fields) > _MOST_FIELDS:
        return _pack(fields, allocate)
    packed = {name: _pack(field, allocate) for name, field in fields.items()}
    return packed if any(packed[name] is not fields[name] for name in packed) else fields


def _pack_nested(lists: list[Any]) -> Any:
    """Several lists of strings: tokens."""
    if not all(type(items) is list for items in lists):
        return lists
    try:
        for items in lists:
            "".join(items)
        return PackedStrings(marshal.dumps(lists))
    except (TypeError, ValueError, MemoryError):
        return lists


def _pack_column(column: Any, allocate: Allocate) -> Any:
    packed = _pack(column, allocate)
    return packed if packed is column else PackedColumn(len(column), *packed.__reduce__())


def _pack(items: Any, allocate: Allocate) -> Any:
    if type(items) is not list or len(items) < _FEWEST:
        return items
    kind = type(items[0])
    if kind is str:
        return _pack_strings(items)
    if kind is not bytes or [*map(type, items)].count(bytes) != len(items):
        return items
    lengths = array("Q", map(len, items)).tobytes()
    layout = layout_of(lengths)
    if layout.size >= _LONG * len(items):
        memory: Any = allocate((layout.size,), np.dtype(np.uint8))
        layout.pack_into(memory, 0, *items)
        return PackedBytes(lengths, memory)
    return PackedStrings(marshal.dumps(items))


def _pack_strings(items: list[Any]) -> Any:
    """Packed, if they are strings. Marshal itself refuses those of a class of their own."""
    try:
        # `startswith` refuses all that are no strings, up to an empty one, with which "" starts: the quickest look.
        if "".startswith(tuple(items)):
            "".join(items)
        return PackedStrings(marshal.dumps(items))
    except (TypeError, ValueError, MemoryError):
        return items


class PackedStrings:
    """Only Python's own types are in it, and both sides are the same Python: so marshal is right, and quick."""

    __slots__ = ("dumped",)

    def __init__(self, dumped: bytes) -> None:
        self.dumped = dumped

    def __reduce__(self) -> Any:
        return unpack_strings, (pickle.PickleBuffer(self.dumped),)


unpack_strings = marshal.loads


@final
class PackedColumn(LaterColumn):
    """A list that is unpacked when the first of its items are wanted."""

    __slots__ = ("_args", "_items", "_length", "_unpack")

    def __init__(self, length: int, unpack: Callable[..., list[Any]], args: tuple[Any, ...]) -> None:
        self._length = length
        self._unpack = unpack
        self._args = args
        self._items: list[Any] | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: slice) -> list[Any]:
        return self.made()[rows]

    def made(self) -> list[Any]:
        if self._items is None:
            self._items, self._args = self._unpack(*self._args), ()
        return self._items

    def __reduce__(self) -> Any:
        return PackedColumn, (self._length, self._unpack, self._args)
