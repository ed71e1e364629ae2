"""Tensors across processes: as the array they lie over, so that their memory can be shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.base.containers import map_leaves
from headrace.base.optional import import_extra
from headrace.frameworks.framework import Array
from headrace.frameworks.torch_tensors import NUMPY_DTYPES, SAME_SIZE_INTEGERS, TorchTensors, is_plain

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "A batch of tensors")

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


def rebuild_tensor(
    memory: Array, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    """See `reduce_tensor`."""
    flat = from_numpy(memory)
    if flat.dtype != dtype:
        flat = flat.view(dtype)
    return flat.as_strided(shape, strides).requires_grad_(requires_grad)
