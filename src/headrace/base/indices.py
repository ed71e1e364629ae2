"""Integer indices as arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_INTEGERS = frozenset({int, np.int64})


def as_index_array(keys: Any) -> Indices | None:
    """A list, tuple, range or array of integers as an int64 array; None if there is anything else in it.

    None too for integers that int64 cannot hold. Bools are not integers here: they select rows in NumPy and torch,
    instead of naming one.
    """
    if isinstance(keys, np.ndarray):
        return keys.astype(np.int64, copy=False) if keys.ndim == 1 and keys.dtype.kind in "iu" else None
    if isinstance(keys, range):
        return np.arange(keys.start, keys.stop, keys.step, dtype=np.int64)
    if type(keys) in (list, tuple) and _INTEGERS.issuperset(map(type, keys)):
        try:
            return np.array(keys, dtype=np.int64)
        except OverflowError:
            return None
    return None
