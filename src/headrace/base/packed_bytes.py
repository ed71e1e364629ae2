"""Many `bytes` as one value."""

from __future__ import annotations

import pickle
import struct
from array import array
from functools import lru_cache
from typing import Any


class PackedBytes:
    """They lie side by side in memory, which may be shared. It unpickles as a list of them.

    Args:
        lengths: of each, as 64-bit numbers.
        memory: a buffer.
    """

    __slots__ = ("lengths", "memory")

    def __init__(self, lengths: bytes, memory: Any) -> None:
        self.lengths = lengths
        self.memory = memory

    def __reduce__(self) -> Any:
        return unpack_bytes, (self.lengths, pickle.PickleBuffer(self.memory))


def unpack_bytes(lengths: Any, memory: Any) -> list[bytes]:
    """The list again."""
    return list(layout_of(bytes(lengths)).unpack_from(memory))


@lru_cache(maxsize=16)
def layout_of(lengths: bytes) -> struct.Struct:
    """How so many bytes lie side by side."""
    return struct.Struct("%ds" * (len(lengths) // 8) % tuple(array("Q", lengths)))
