"""Many `bytes` as one value."""

from __future__ import annotations

import pickle
import struct
from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple


class Stretch(NamedTuple):
    """Some that lie side by side in memory, which may be shared.

    Attributes:
        lengths: of each, as 64-bit numbers.
        memory: a buffer.
    """

    lengths: bytes
    memory: Any


class PackedBytes:
    """In one stretch or more. It unpickles as a list of them."""

    __slots__ = ("stretches",)

    def __init__(self, *stretches: Stretch) -> None:
        self.stretches = stretches

    @classmethod
    def joined(cls, several: Iterable[PackedBytes]) -> PackedBytes:
        """All of them, one after the other."""
        return cls(*(stretch for packed in several for stretch in packed.stretches))

    def __len__(self) -> int:
        return sum(len(stretch.lengths) for stretch in self.stretches) // 8

    def tolist(self) -> list[bytes]:
        return unpack_bytes(*(part for stretch in self.stretches for part in stretch))

    def __reduce__(self) -> Any:
        return unpack_bytes, _picklable(self)


class Held:
    """Packed bytes that stay packed when they are unpickled, until they are wanted."""

    __slots__ = ("packed",)

    def __init__(self, packed: PackedBytes) -> None:
        self.packed = packed

    def __reduce__(self) -> Any:
        return _hold, _picklable(self.packed)


def _picklable(packed: PackedBytes) -> tuple[Any, ...]:
    stretches = ((stretch.lengths, pickle.PickleBuffer(stretch.memory)) for stretch in packed.stretches)
    return tuple(part for stretch in stretches for part in stretch)


def _hold(*parts: Any) -> Held:
    return Held(PackedBytes(*map(Stretch, parts[::2], parts[1::2])))


def unpack_bytes(*parts: Any) -> list[bytes]:
    """The list again, of the lengths and the memory of each stretch."""
    stretches = zip(parts[::2], parts[1::2], strict=True)
    first, *others = (layout_of(bytes(lengths)).unpack_from(memory) for lengths, memory in stretches)
    unpacked = list(first)
    for other in others:
        unpacked += other
    return unpacked


@lru_cache(maxsize=16)
def layout_of(lengths: bytes) -> struct.Struct:
    """How so many bytes lie side by side."""
    return struct.Struct("%ds" * (len(lengths) // 8) % tuple(array("Q", lengths)))
