"""Batches of a worker process: NumPy arrays in shared memory, that become the framework's own in the loader's process.

So a worker needs no torch and no JAX, unless the dataset does.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.base.containers import map_leaves
from headrace.frameworks.framework import Allocate, Array, Framework, framework_of, tensor_type
from headrace.frameworks.numpy_arrays import PLAIN_TYPES, NumpyArrays, join_rows, pad_arrays

_SMALL_BATCH = 2**17  # bytes
_PYTHON_DTYPES: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}
_TORCH_DTYPES = frozenset(map(np.dtype, PLAIN_TYPES))


class DeferredTensor:
    """Unpickles as a torch tensor over the array."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def __reduce__(self) -> Any:
        array: Any = self.array
        if not array.flags.c_contiguous:
            return make_tensor_of, (array,)
        return make_tensor, (pickle.PickleBuffer(array), array.dtype.char, array.shape)


class DeferredJaxArray:
    """Unpickles as a JAX array with the array's values."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def __reduce__(self) -> Any:
        return make_jax_array, (self.array,)


_from_numpy: Callable[[Array], Any] | None = None


def make_tensor(buffer: Any, kind: str, shape: tuple[int, ...]) -> Any:
    """The tensor over a buffer, in the loader's process."""
    return make_tensor_of(np.ndarray(shape, kind, buffer))


def make_tensor_of(array: Array) -> Any:
    """The tensor over an array, in the loader's process."""
    global _from_numpy
    if _from_numpy is None:
        from headrace.frameworks.torch_tensors import from_numpy

        _from_numpy = from_numpy
    return _from_numpy(array)


def make_jax_array(array: Array) -> Any:
    """The JAX array of an array, in the loader's process."""
    return framework_of("jax").wrap(array)


def deferred_framework(output: str, allocate: Allocate) -> Framework:
    """The framework for workers whose batches are to be of `output`, "torch", "jax" or "numpy"."""
    match output:
        case "torch":
            return DeferredTensors(allocate)
        case "jax":
            return DeferredJaxArrays(allocate)
        case _:
            return NumpyArrays(allocate)


def immediate_framework(output: str, allocate: Allocate) -> Framework:
    """The framework for workers whose batches are seen by a user's functions, as what they are to be."""
    if output != "torch":
        return framework_of(output, allocate)
    from headrace.frameworks.torch_tensors import ContiguousTensors

    return ContiguousTensors(allocate)


class DeferredJaxArrays(NumpyArrays):
    """Collates as NumPy does, for JAX."""

    name = "jax"

    def wrap(self, array: Array) -> Any:
        return DeferredJaxArray(array)


class DeferredTensors:
    """Collates as torch does; what NumPy cannot do alike is left to torch itself, in the worker."""

    name = "torch"

    def __init__(self, allocate: Allocate) -> None:
        self.allocate = allocate

    def wrap(self, array: Array) -> Any:
        return DeferredTensor(array) if array.dtype in _TORCH_DTYPES else self._torch().wrap(array)

    def wrap_host(self, array: Array) -> Any:
        return self.wrap(array)

    def stack(self, samples: Sequence[Any]) -> Any:
        first = samples[0]
        if isinstance(first, np.ndarray) and first.dtype.names is not None:
            return {name: self.stack([sample[name] for sample in samples]) for name in first.dtype.names}
        if type(first) is tensor_type() and _is_small(first, len(samples)):
            return self._stack_by_torch(samples)
        arrays = samples if isinstance(first, np.ndarray) else _plain_arrays(samples)
        if arrays is not None and arrays[0].dtype in _TORCH_DTYPES:
            joined = join_rows(arrays, self.allocate)
            if joined is not None:
                return DeferredTensor(joined)
        return self._stack_by_torch(samples)

    def _stack_by_torch(self, samples: Sequence[Any]) -> Any:
        return map_leaves(self.convert, self._torch().stack(samples))

    def join_numbers(self, values: Sequence[Any], dtype: np.dtype[Any] | None) -> Any:
        if len(set(map(type, values))) == 1:
            try:
                joined = np.array(values, dtype=_PYTHON_DTYPES.get(type(values[0])))
            except (OverflowError, TypeError):
                joined = None
            if joined is not None and joined.dtype in _TORCH_DTYPES:
                return DeferredTensor(joined)
        return self._torch().join_numbers(values, dtype)

    def pad(self, samples: Sequence[Any], multiple_of: int, value: float, batch_first: bool) -> tuple[Any, list[int]]:
        if all(isinstance(sample, np.ndarray) and sample.dtype in _TORCH_DTYPES for sample in samples):
            arrays: Sequence[Array] | None = samples
        else:
            arrays = _plain_arrays(samples)
        if arrays is None:
            return self._torch().pad(samples, multiple_of, value, batch_first)
        padded, lengths = pad_arrays(arrays, multiple_of, value, batch_first, self.allocate)
        return DeferredTensor(padded), lengths

    def convert(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            plain = type(value) is np.ndarray and value.dtype in _TORCH_DTYPES and value.flags.c_contiguous
            array = value if plain else None
        else:
            arrays = _plain_arrays([value])
            array = None if arrays is None or not arrays[0].flags.c_contiguous else arrays[0]
        return self._torch().convert(value) if array is None else DeferredTensor(array)

    def _torch(self) -> Framework:
        return immediate_framework("torch", self.allocate)


def _is_small(tensor: Any, n: int) -> bool:
    """Whether looking at each of `n` such tensors would take longer than another copy of them all."""
    return not tensor.is_sparse and tensor.numel() * tensor.element_size() * n < _SMALL_BATCH


def _plain_arrays(samples: Sequence[Any]) -> list[Array] | None:
    """Tensors as arrays over the same memory; None if one of the samples is something else."""
    tensor = tensor_type()
    if tensor is None or any(type(sample) is not tensor for sample in samples):
        return None
    from headrace.frameworks.torch_tensors import is_plain

    return [sample.numpy() for sample in samples] if all(map(is_plain, samples)) else None
