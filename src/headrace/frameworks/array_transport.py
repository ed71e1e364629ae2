"""Arrays across processes: their memory as one buffer, and what is needed to see it as an array again."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from headrace.frameworks.framework import Array

PLAIN_TYPES = frozenset("?bBhHiIlLqQefdFD")
"""The characters of the element types that every framework knows."""


def reduce_array(array: Any) -> Any:
    """How to pickle an array, in a third of NumPy's own time where the array is plain."""
    if array.dtype.char in PLAIN_TYPES and array.dtype.isnative and array.flags.c_contiguous:
        return rebuild_array, (pickle.PickleBuffer(array), array.dtype.char, array.shape)
    return array.__reduce_ex__(5)


def rebuild_array(buffer: Any, kind: str, shape: tuple[int, ...]) -> Array:
    """See `reduce_array`."""
    array: Array = np.ndarray(shape, kind, buffer)
    return array
