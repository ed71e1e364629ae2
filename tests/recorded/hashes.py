"""Hashes of batches: by dtype, shape and bytes of arrays, and by the values of everything else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

DIGITS = 16


def hash_batches(batches: Iterable[Any]) -> str:
    """The first hexadecimal digits of a SHA-256 over all batches, in their order."""
    digest = hashlib.sha256()
    for batch in batches:
        for part in _encode(batch):
            digest.update(len(part).to_bytes(8, "little"))  # so that no two sequences of parts are the same bytes
            digest.update(part)
    return digest.hexdigest()[:DIGITS]


def _encode(value: Any) -> Iterable[bytes]:
    match value:
        case np.ndarray() if value.dtype == object:
            yield from _encode(value.tolist())
        case np.ndarray() | np.generic():
            array = np.asarray(value)
            yield f"array {array.dtype.str} {array.shape}".encode()
            yield array.tobytes()
        case None | bool() | int() | float():
            yield f"{type(value).__name__} {value!r}".encode()
        case str():
            yield b"str " + value.encode("utf-8", "surrogatepass")
        case bytes() | bytearray() | memoryview():
            yield b"bytes " + bytes(value)
        case Mapping():
            yield f"mapping of {len(value)}".encode()
            for key, item in value.items():
                yield from _encode(key)
                yield from _encode(item)
        case Sequence():  # lists, tuples, named tuples, and whatever stands for a list
            yield f"sequence of {len(value)}".encode()
            for item in value:
                yield from _encode(item)
        case _:
            raise TypeError(f"Batches must be made of arrays and plain values, got {type(value).__name__}.")
