"""How many bytes a batch has: of its arrays, strings and bytes, wherever in its containers they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEEPEST = 8
_MANY = 16


def bytes_of(batch: Any) -> int:
    """The bytes of everything in a batch that has a size; what is unknown counts as nothing.

    Of a long list, some elements are looked at, and the others taken to be alike.
    """
    try:
        return _bytes_of(batch, _DEEPEST)
    except Exception:  # noqa: BLE001 (a user's own container may refuse to be looked at)
        return 0


def _bytes_of(batch: Any, depth: int) -> int:
    if isinstance(batch, (str, bytes, bytearray)):
        return len(batch)
    n_bytes = getattr(batch, "nbytes", None)
    if isinstance(n_bytes, int):
        return n_bytes
    if not depth:
        return 0
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, (list, tuple)):
        return 0
    elif len(batch) > _MANY:  # as much as some of them, for all: looking at each would take longer than to load them
        some = batch[:: len(batch) // _MANY]
        return sum(_bytes_of(field, depth - 1) for field in some) * len(batch) // len(some)
    return sum(_bytes_of(field, depth - 1) for field in batch)
