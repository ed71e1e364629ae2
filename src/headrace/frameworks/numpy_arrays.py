"""Batches as NumPy arrays, and indices drawn from NumPy's generators; the other frameworks build on both."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from headrace.base.errors import CollateError, CollateTypeError
from headrace.base.indices import Indices
from headrace.frameworks.framework import Allocate, Array, Gather, empty_aligned

_LARGE_ROW = 2048  # bytes
_LARGE_BATCH = 2**17  # bytes
_PLAIN_ARRAYS = frozenset({np.ndarray, np.memmap})


class NumpyArrays:
    """Makes NumPy arrays."""

    name = "numpy"

    def __init__(self, allocate: Allocate = empty_aligned) -> None:
        self.allocate = allocate

    def wrap(self, array: Array) -> Any:
        return array

    def wrap_host(self, array: Array) -> Any:
        return self.wrap(array)

    def stack(self, samples: Sequence[Any]) -> Any:
        arrays = [as_array(sample) for sample in samples]
        if arrays[0].dtype.kind == "O":
            raise CollateTypeError(f"arrays of Python objects cannot be stacked, got dtype {arrays[0].dtype}.")
        joined = join_rows(arrays, self.allocate)
        if joined is None:
            check_equal_shapes(arrays)
            joined = np.stack(arrays)
        return self.wrap(joined)

    def join_numbers(self, values: Sequence[Any], dtype: np.dtype[Any] | None) -> Any:
        if set(map(type, values)) == {int}:
            # NumPy would choose uint64, float64 or objects for large ones.
            return self.wrap(np.array(values, dtype=np.int64))
        try:
            joined = np.array(values)
        except (TypeError, ValueError) as error:
            raise CollateTypeError(odd_one_out(values, error)) from error
        if joined.dtype.kind in "OSU":
            raise CollateTypeError(odd_one_out(values, "they have no number in common"))
        return self.wrap(joined if dtype is None else joined.astype(dtype, copy=False))

    def pad(self, samples: Sequence[Any], multiple_of: int, value: float, batch_first: bool) -> tuple[Any, list[int]]:
        arrays = [as_array(sample) for sample in samples]
        padded, lengths = pad_arrays(arrays, multiple_of, value, batch_first, self.allocate)
        return self.wrap(padded), lengths

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
        array = np.asarray(value)
    except (TypeError, RuntimeError) as error:
        raise CollateTypeError(f"{type(value).__name__} cannot become a NumPy array: {error}") from error
    if array.dtype.kind == "O":
        raise CollateTypeError(f"{type(value).__name__} is no array of numbers.")
    return array


def odd_one_out(values: Sequence[Any], reason: Any) -> str:
    """What to say of values that do not go together: which is of another type than the first, or else the reason."""
    kind = type(values[0])
    for i, value in enumerate(values):
        if type(value) is not kind:
            hint = " Does __getitem__ forget to return something?" if value is None else ""
            return f"entry {i} is of type {type(value).__name__}, but entry 0 of type {kind.__name__}.{hint}"
    return f"values of type {kind.__name__} cannot become one array: {reason}"


def join_rows(arrays: Sequence[Any], allocate: Allocate) -> Array | None:
    """Arrays of one shape and one dtype as one array with a new first dimension, in memory from `allocate`.

    None if the shapes or dtypes differ, or if there is something else among them: then look closer.
    """
    first = arrays[0]
    shape = first.shape
    if not shape or not _PLAIN_ARRAYS.issuperset(map(type, arrays)) or arrays[-1].dtype != first.dtype:
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


def pad_arrays(
    arrays: Sequence[Array], multiple_of: int, value: float, batch_first: bool, allocate: Allocate
) -> tuple[Array, list[int]]:
    """See `Framework.pad`."""
    rest = arrays[0].shape[1:]
    if any(array.shape[1:] != rest for array in arrays):
        raise unequal_rest(arrays)
    lengths = [len(array) for array in arrays]
    length = -(-max(lengths) // multiple_of) * multiple_of
    shape = (len(arrays), length) if batch_first else (length, len(arrays))
    out = allocate((*shape, *rest), np.result_type(*{array.dtype for array in arrays}))
    if out.dtype.type(value) != value == value:  # not equal, and not NaN
        raise CollateError(f"padding_value={value} cannot be stored in {out.dtype}, the type of the sequences.")
    rows = out if batch_first else out.swapaxes(0, 1)
    if out.nbytes < _CACHED:
        out.fill(value)
    for row, array, n in zip(rows, arrays, lengths, strict=True):
        row[:n] = array
        if out.nbytes >= _CACHED:
            row[n:] = value
    return out, lengths


_CACHED = 2**18  # bytes; filling so little as a whole is faster than row by row


def unequal_rest(sequences: Sequence[Any]) -> CollateError:
    """The error for sequences that cannot be padded along their first dimension alone."""
    shapes = ", ".join(str(tuple(sequence.shape)) for sequence in sequences[:8])
    return CollateError(f"sequences may differ in their first dimension only, but their shapes are {shapes}.")


def check_equal_shapes(samples: Sequence[Any]) -> None:
    """See that all arrays or tensors have the shape of the first.

    Raises:
        CollateError: one differs; says which, and what to do.
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


def gather_rows(source: Array, allocate: Allocate = empty_aligned) -> Gather | None:
    """See `gather_of`; large batches go into memory from `allocate`."""
    dtype = source.dtype
    if type(source) not in _PLAIN_ARRAYS or source.ndim == 0 or dtype.kind not in "biufc":
        return None
    if not dtype.isnative:
        return None
    source = source.view(np.ndarray)
    n, shape = len(source), source.shape[1:]
    row_bytes = math.prod(shape) * dtype.itemsize
    if source.flags.c_contiguous:

        def gather(indices: Indices) -> Array:
            if row_bytes < _LARGE_ROW and row_bytes * len(indices) < _LARGE_BATCH:
                return source.take(indices, axis=0)
            if indices.min() < 0 or indices.max() >= n:
                return source.take(indices, axis=0)
            out = allocate((len(indices), *shape), dtype)
            return source.take(indices, axis=0, out=out, mode="clip")  # mode="raise" would copy through a buffer

        return gather
    if source.ndim > 4:
        return None  # torch may keep such a layout when it stacks

    def gather_strided(indices: Indices) -> Array:
        rows = source[indices]  # `take` would copy the whole source first
        return rows.reshape(-1).reshape(rows.shape)  # contiguous, in dimensions of size 1 too

    return gather_strided


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


Weights: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


class NumpyRandom:
    """Draws from the given generator, or from NumPy's global one, so that `np.random.seed` makes a run repeatable."""

    def __init__(self, generator: np.random.Generator | np.random.RandomState | None) -> None:
        self._given = generator

    def draw_seed(self) -> int:
        given = self._given
        if isinstance(given, np.random.Generator):
            return int(given.integers(2**63 - 1))
        legacy: Any = np.random if given is None else given
        return int(legacy.randint(2**63 - 1, dtype=np.int64))

    def fresh(self) -> NumpyRandom:
        return NumpyRandom(np.random.default_rng(self.draw_seed()))

    def permutation(self, n: int) -> Indices:
        return self._generator().permutation(n)

    def integers(self, high: int, size: int) -> Indices:
        return self._generator().integers(high, size=size)

    def as_weights(self, weights: Any) -> Weights:
        return np.asarray(weights, dtype=np.float64)

    def weighted(self, weights: Any, size: int, replacement: bool) -> Indices:
        return draw_weighted(self._generator(), np.asarray(weights), size, replacement)

    def _generator(self) -> np.random.Generator:
        given = self._given
        return given if isinstance(given, np.random.Generator) else np.random.default_rng(self.draw_seed())


def draw_weighted(generator: np.random.Generator, weights: Weights, size: int, replacement: bool) -> Indices:
    """Indices drawn in proportion to their weights, for any number of weights.

    Raises:
        RuntimeError: a weight is negative or not finite, all are zero, or there are too few to draw from.
    """
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise RuntimeError("weights must be finite and not negative.")
    if not weights.any():
        raise RuntimeError("weights must not all be zero.")
    if replacement:
        cumulative = np.cumsum(weights / weights.max())
        draws = np.searchsorted(cumulative, generator.random(size) * cumulative[-1], side="right")
        capped: Indices = np.minimum(draws, np.flatnonzero(weights)[-1])  # rounding must not reach a weightless tail
        return capped
    candidates = np.flatnonzero(weights)
    if size > len(candidates):
        raise RuntimeError(
            f"Cannot draw {size} samples without replacement from {len(candidates)} that have a weight. "
            "Pass replacement=True, or a smaller num_samples."
        )
    # The smallest of exponential waiting times with these rates come in the order of weighted draws.
    waits = generator.standard_exponential(len(candidates)) / weights[candidates]
    order = np.argsort(waits, kind="stable")[:size]
    return candidates.take(order)
