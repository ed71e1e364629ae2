"""Batches as NumPy arrays; also the stacking that the other frameworks build on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.base.errors import CollateError, CollateTypeError
from headrace.frameworks.framework import Allocate, Array, Gather, Indices

_PLAIN_ARRAYS = frozenset({np.ndarray, np.memmap})


class NumpyArrays:
    """Makes NumPy arrays."""

    name = "numpy"

    def __init__(self, allocate: Allocate = np.empty) -> None:
        self._allocate = allocate

    def wrap(self, array: Array) -> Any:
        return array

    def stack(self, samples: Sequence[Any]) -> Any:
        arrays = [as_array(sample) for sample in samples]
        if arrays[0].dtype.kind == "O":
            raise CollateTypeError(f"arrays of Python objects cannot be stacked, got dtype {arrays[0].dtype}.")
        joined = join_rows(arrays, self._allocate)
        if joined is None:
            check_equal_shapes(arrays)
            joined = np.stack(arrays)
        return self.wrap(joined)

    def join_numbers(self, values: Sequence[Any], dtype: np.dtype[Any] | None) -> Any:
        if dtype is None and set(map(type, values)) == {int}:
            dtype = np.dtype(np.int64)  # or NumPy would choose uint64, float64 or objects for large ones
        return self.wrap(np.array(values, dtype=dtype))

    def pad(self, samples: Sequence[Any], length: int, value: float, batch_first: bool) -> Any:
        return self.wrap(pad_arrays([as_array(s) for s in samples], length, value, batch_first, self._allocate))

    def convert(self, value: Any) -> Any:
        return self.wrap(as_array(value))


def as_array(value: Any) -> Array:
    """An array, tensor or scalar as a NumPy array, over the same memory where possible.

    Raises:
        CollateTypeError: NumPy has no such element type (bfloat16, for instance).
    """
    if isinstance(value, np.ndarray):
        return value
    detach = getattr(value, "detach", None)
    if detach is not None:  # a torch tensor, whose memory may be on a device or belong to a graph
        value = detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError) as error:
        raise CollateTypeError(f"{type(value).__name__} cannot become a NumPy array: {error}") from error


def join_rows(arrays: Sequence[Any], allocate: Allocate) -> Array | None:
    """Arrays of one shape and one dtype as one array with a new first dimension, in memory from `allocate`.

    None if the shapes or dtypes differ, or if there is something else among them: then look closer.
    """
    first = arrays[0]
    shape = first.shape
    if not shape or not _PLAIN_ARRAYS.issuperset(map(type, arrays)):
        return None
    out = allocate((len(arrays), *shape), first.dtype)
    rows = out.reshape(len(arrays) * shape[0], *shape[1:])
    try:
        if set(map(len, arrays)) != {shape[0]}:
            return None
        np.concatenate(arrays, out=rows, casting="no")
    except (TypeError, ValueError):
        return None
    return out


def pad_arrays(arrays: Sequence[Array], length: int, value: float, batch_first: bool, allocate: Allocate) -> Array:
    """See `Framework.pad`."""
    shape = (len(arrays), length) if batch_first else (length, len(arrays))
    out = allocate((*shape, *arrays[0].shape[1:]), np.result_type(*{array.dtype for array in arrays}))
    if out.dtype.type(value) != value == value:  # not equal, and not NaN
        raise CollateError(f"padding_value={value} cannot be stored in {out.dtype}, the type of the sequences.")
    rows = out if batch_first else out.swapaxes(0, 1)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
        row[len(array) :] = value
    return out


def check_equal_shapes(samples: Sequence[Any]) -> None:
    """See that all arrays or tensors have the shape of the first.

    Raises:
        CollateError: one differs; tells which, and what to do.
    """
    shapes = [tuple(np.shape(sample)) for sample in samples]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            seen = ", ".join(map(str, dict.fromkeys(shapes[:8])))
            raise CollateError(
                f"stack expects each sample to be of equal size, but got {shapes[0]} at entry 0 and {shape} at entry "
                f"{i} (shapes in this batch: {seen}{', …' if len(shapes) > 8 else ''}). For sequences of different "
                "lengths pass collate_fn=headrace.pad_collate(), or a collate_fn of your own."
            )


def gather_rows(source: Array) -> Gather | None:
    """See `gather_of`."""
    dtype = source.dtype
    if type(source) not in _PLAIN_ARRAYS or source.ndim == 0 or dtype.kind not in "biufc":
        return None
    if not dtype.isnative:
        return None
    source = source.view(np.ndarray)
    if source.flags.c_contiguous:

        def gather(indices: Indices) -> Array:
            return source.take(indices, axis=0)

        return gather
    if source.ndim > 4:
        return None  # torch may keep such a layout when it stacks

    def gather_strided(indices: Indices) -> Array:
        rows = source[indices]  # `take` would copy the whole source first
        return rows.reshape(-1).reshape(rows.shape)  # contiguous, in dimensions of size 1 too

    return gather_strided
