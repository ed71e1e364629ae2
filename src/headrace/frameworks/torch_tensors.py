"""Batches as torch tensors, with the results of `torch.utils.data.default_collate`; page-locked, or sent as arrays."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.containers import map_leaves
from headrace.base.errors import CollateError, CollateTypeError, warn_user
from headrace.base.optional import import_extra
from headrace.frameworks.framework import Allocate, Array, Gather, empty_aligned
from headrace.frameworks.numpy_arrays import (
    PLAIN_TYPES,
    check_equal_shapes,
    gather_rows,
    join_rows,
    odd_one_out,
    pad_arrays,
    unequal_rest,
)

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "output='torch'")

_SPARSE_LAYOUTS = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
_NUMPY_NAMES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128"
NUMPY_DTYPES = frozenset(getattr(torch, name) for name in _NUMPY_NAMES.split())
SAME_SIZE_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TorchTensors:
    """Makes torch tensors."""

    name = "torch"

    def __init__(self, allocate: Allocate = empty_aligned) -> None:
        self.allocate = allocate
        self._on_host = torch.empty(0).is_cpu  # the default device; `get_default_device` is slow

    def wrap(self, array: Array) -> Any:
        return torch.from_numpy(array) if self._on_host else torch.as_tensor(array)  # on the default device

    def wrap_host(self, array: Array) -> Any:
        return torch.from_numpy(array)

    def stack(self, samples: Sequence[Any]) -> Any:
        first = samples[0]
        if isinstance(first, torch.Tensor):
            return _stack_tensors(samples)
        if first.dtype.names is not None:
            return {name: self.stack([sample[name] for sample in samples]) for name in first.dtype.names}
        if first.dtype.kind in "OSU":
            raise CollateTypeError(f"arrays of strings or Python objects are no tensors, got dtype {first.dtype}.")
        # torch keeps the layout of four-dimensional samples (channels last) when it stacks; NumPy would not.
        shared = len(samples) * first.nbytes >= _SHARED_AMONG_THREADS and torch.get_num_threads() > 1
        if not shared and (first.ndim < 4 or first.flags.c_contiguous):
            joined = join_rows(samples, self.allocate)
            if joined is not None:
                return self.wrap(joined)
        try:
            tensors = [self._as_tensor(sample) for sample in samples]
        except (TypeError, RuntimeError) as error:
            raise _about(samples, error) from error
        alike = {(sample.dtype, sample.shape, sample.flags.c_contiguous) for sample in samples} if shared else ()
        if self._on_host and alike == {(first.dtype, first.shape, True)} and first.dtype.char in PLAIN_TYPES:
            memory = torch.from_numpy(self.allocate((len(samples), *first.shape), first.dtype))
            return torch.stack(tensors, 0, out=memory)
        return _stack_tensors(tensors)

    def join_numbers(self, values: Sequence[Any], dtype: np.dtype[Any] | None) -> Any:
        if len(set(map(type, values))) == 1:
            try:
                return self.wrap(np.array(values, dtype=_PYTHON_DTYPES.get(type(values[0]))))
            except (OverflowError, TypeError):
                pass  # torch refuses these too, in words its users know
        try:
            return torch.as_tensor(values, dtype=None if dtype is None else torch.float64)
        except (TypeError, RuntimeError) as error:
            raise _about(values, error) from error

    def pad(self, samples: Sequence[Any], multiple_of: int, value: float, batch_first: bool) -> tuple[Any, list[int]]:
        try:
            arrays = [sample if isinstance(sample, np.ndarray) else sample.numpy() for sample in samples]
        except (TypeError, RuntimeError):  # on a device, in a graph, or of a type that NumPy lacks
            return _pad_tensors([self.convert(sample) for sample in samples], multiple_of, value, batch_first)
        padded, lengths = pad_arrays(arrays, multiple_of, value, batch_first, self.allocate)
        return self.wrap(padded), lengths

    def convert(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value
        if value.dtype.names is not None:
            return {name: self.convert(value[name]) for name in value.dtype.names}
        return self._as_tensor(value)

    def _as_tensor(self, value: Any) -> torch.Tensor:
        if type(value) is np.ndarray:
            if any(stride < 0 or stride % value.itemsize for stride in value.strides):
                value = value.copy()  # torch has no such strides
            if self._on_host and value.flags.writeable:
                return torch.from_numpy(value)  # half the time of `as_tensor`
        return torch.as_tensor(value)


_SHARED_AMONG_THREADS = 2**23  # bytes; from here on torch copies faster than NumPy, if it may use several threads
_PYTHON_DTYPES: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}


def _about(values: Sequence[Any], error: Exception) -> CollateError | CollateTypeError:
    """Torch's error about a value, as a type to which containers can add their key."""
    kind = CollateTypeError if isinstance(error, TypeError) else CollateError
    return kind(odd_one_out(values, error))


def _stack_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    first = tensors[0]
    if first.is_nested or first.layout in _SPARSE_LAYOUTS:
        kind = "nested" if first.is_nested else "sparse"
        raise CollateError(f"{kind} tensors have no default batch; pass a collate_fn that makes one.")
    try:
        return torch.stack(tensors, 0)
    except TypeError as error:
        raise _about(tensors, error) from error
    except RuntimeError:
        check_equal_shapes(tensors)
        raise


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether NumPy can read the tensor's memory: on the host, in no graph, of a type that NumPy has."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.requires_grad:
        return False
    return not (tensor.is_conj() or tensor.is_neg() or tensor.dtype not in NUMPY_DTYPES)


def plain_array(tensor: torch.Tensor) -> Array | None:
    """The array over the tensor's memory, if NumPy can read it."""
    return tensor.numpy() if is_plain(tensor) else None


def _pad_tensors(
    tensors: list[torch.Tensor], multiple_of: int, value: float, batch_first: bool
) -> tuple[torch.Tensor, list[int]]:
    if any(tensor.shape[1:] != tensors[0].shape[1:] for tensor in tensors):
        raise unequal_rest(tensors)
    lengths = [len(tensor) for tensor in tensors]
    longest = lengths.index(max(lengths))
    missing = -max(lengths) % multiple_of
    if missing:
        filler = tensors[longest].new_full((missing, *tensors[longest].shape[1:]), value)
        tensors[longest] = torch.cat([tensors[longest], filler])
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first, value), lengths


def gather_tensor_rows(source: torch.Tensor, allocate: Allocate = empty_aligned) -> Gather | None:
    """See `gather_of`. NumPy gathers, because torch would wake its thread pool for every batch."""
    dtype = source.dtype
    if dtype not in NUMPY_DTYPES and source.is_contiguous() and not source.is_quantized:
        # The same bits, as numbers that NumPy knows.
        source = source.view(SAME_SIZE_INTEGERS[dtype.itemsize])
    gather = gather_rows(source.numpy(), allocate) if is_plain(source) else None
    if gather is None:
        return None
    if source.dtype == dtype:
        return lambda indices: torch.from_numpy(gather(indices))
    return lambda indices: torch.from_numpy(gather(indices)).view(dtype)


def can_pin(pin_memory_device: str) -> bool:
    """Whether page-locked memory is to be had here; warns, as torch does, where it was asked for in vain."""
    accelerator = current_accelerator()
    if pin_memory_device:
        warn_user(
            f"pin_memory_device={pin_memory_device!r} is ignored: memory is pinned for the current accelerator "
            f"({accelerator or 'none found'}). Leave it out."
        )
    if accelerator is None:
        warn_user("'pin_memory' argument is set as true but no accelerator is found, then pinned memory won't be used.")
    elif accelerator == "mps":
        warn_user("'pin_memory' argument is set as true but not supported on MPS, then pinned memory won't be used.")
    return accelerator not in (None, "mps")


def current_accelerator() -> str | None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:  # torch before 2.6
        return "cuda" if torch.cuda.is_available() else None
    if not accelerator.is_available():
        return None
    device = accelerator.current_accelerator()
    return None if device is None else str(device.type)


def pin(batch: Any) -> Any:
    """The batch with every tensor in page-locked memory; whatever has a `pin_memory()` of its own is asked for it."""

    def pinnable(value: Any) -> bool:
        return hasattr(value, "pin_memory")

    def pin_one(value: Any) -> Any:
        return value.pin_memory() if pinnable(value) else value

    return map_leaves(pin_one, batch, is_leaf=pinnable)


_WIDEST = 4  # memory between the elements is sent too, up to this many times their own


class ContiguousTensors(TorchTensors):
    """Stacks as torch does in workers, whose batches are contiguous whatever the layout of the samples."""

    def stack(self, samples: Sequence[Any]) -> Any:
        return map_leaves(lambda tensor: tensor.contiguous(), super().stack(samples))


def reduce_tensor(tensor: torch.Tensor) -> Any:
    """How to pickle a tensor: values, type, shape and strides are kept; memory that tensors share is not."""
    if is_plain(tensor) and tensor.is_contiguous():
        return from_numpy, (tensor.numpy(),)
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return tensor.__reduce_ex__(5)
    if (tensor.requires_grad and not tensor.is_leaf) or tensor.is_conj() or tensor.is_neg():
        return tensor.__reduce_ex__(5)
    values = tensor.detach()
    if values.dtype not in NUMPY_DTYPES and values.dtype.itemsize not in SAME_SIZE_INTEGERS:
        return tensor.__reduce_ex__(5)
    span = (
        0 if values.numel() == 0 else 1 + sum((n - 1) * s for n, s in zip(values.shape, values.stride(), strict=True))
    )
    if span > _WIDEST * values.numel():
        values = values.contiguous()
        span = values.numel()
    memory = values.as_strided((span,), (1,))
    if values.dtype not in NUMPY_DTYPES:
        memory = memory.view(SAME_SIZE_INTEGERS[values.dtype.itemsize])  # the same bits
    return rebuild_tensor, (
        memory.numpy(),
        values.dtype,
        tuple(values.shape),
        values.stride(),
        tensor.requires_grad,
    )


def from_numpy(array: Array) -> torch.Tensor:
    """The tensor over the array; over a copy if torch could not write to it."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def share_numpy(array: Array) -> torch.Tensor:
    """The tensor over the array, even if that may only be read: whoever has the tensor is to leave it as it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def rebuild_tensor(
    memory: Array, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    """See `reduce_tensor`."""
    flat = from_numpy(memory)
    if flat.dtype != dtype:
        flat = flat.view(dtype)
    return flat.as_strided(shape, strides).requires_grad_(requires_grad)
