"""Lists of strings and bytes as one string: pickled one by one, they would take most of the time of a batch."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

_WORTH_PACKING = 8
_SEPARATOR = "\0"


class PackedStrings:
    """Unpickles as the list or tuple of strings that it was made of."""

    __slots__ = ("_joined", "_kind")

    def __init__(self, kind: type, joined: str) -> None:
        self._kind = kind
        self._joined = joined

    def __reduce__(self) -> Any:
        return (split_strings if self._kind is list else split_strings_to_tuple), (self._joined,)


class PackedBytes:
    """Unpickles as the list or tuple of bytes that it was made of."""

    __slots__ = ("_joined", "_kind", "_lengths")

    def __init__(self, kind: type, joined: bytes, lengths: Any) -> None:
        self._kind = kind
        self._joined = joined
        self._lengths = lengths

    def __reduce__(self) -> Any:
        return split_bytes, (self._kind is list, pickle.PickleBuffer(self._joined), self._lengths)


def split_strings(joined: str) -> list[str]:
    return joined.split(_SEPARATOR)


def split_strings_to_tuple(joined: str) -> tuple[str, ...]:
    return tuple(joined.split(_SEPARATOR))


def split_bytes(is_list: bool, joined: Any, lengths: Any) -> list[bytes] | tuple[bytes, ...]:
    view = memoryview(joined)
    parts, start = [], 0
    for length in lengths.tolist():
        end = start + length
        parts.append(bytes(view[start:end]))
        start = end
    return parts if is_list else tuple(parts)


def pack(batch: Any) -> Any:
    """The batch with its lists of strings and bytes packed, wherever they lie in plain dicts, lists and tuples."""
    kind = type(batch)
    if kind is list or kind is tuple:
        return _pack_sequence(kind, batch)
    if kind is dict:
        packed = {key: pack(value) if type(value) in _CONTAINERS else value for key, value in batch.items()}
        return packed if any(packed[key] is not batch[key] for key in packed) else batch
    return batch


_CONTAINERS = frozenset({dict, list, tuple})
_LONGEST_WALK = 64


def _pack_sequence(kind: type, batch: Any) -> Any:
    if not batch:
        return batch
    first = type(batch[0])
    if first is str or first is bytes:
        if len(batch) < _WORTH_PACKING or set(map(type, batch)) != {first}:
            return batch
        return _pack_strings(kind, batch) if first is str else _pack_bytes(kind, batch)
    if len(batch) > _LONGEST_WALK:
        return batch
    packed = [pack(value) if type(value) in _CONTAINERS else value for value in batch]
    if all(new is old for new, old in zip(packed, batch, strict=True)):
        return batch
    return packed if kind is list else tuple(packed)


def _pack_strings(kind: type, values: Any) -> Any:
    joined = _SEPARATOR.join(values)
    if joined.count(_SEPARATOR) != len(values) - 1:
        return values  # one of them contains the separator
    return PackedStrings(kind, joined)


def _pack_bytes(kind: type, values: Any) -> Any:
    return PackedBytes(kind, b"".join(values), np.fromiter(map(len, values), np.int64, len(values)))
