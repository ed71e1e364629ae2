"""Says exactly what a value or an outcome is, so that two of them can be compared bit for bit."""

from __future__ import annotations

import dataclasses
import re
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from headrace import CollateError, CollateTypeError

Fingerprint = tuple[Any, ...]

_DEATH_IN_TORCH = re.compile(r"DataLoader worker \(pid.*(exited unexpectedly|is killed by signal)", re.DOTALL)


class TorchWorkerDiedError(Exception):
    """A worker of torch's own died, as on a busy machine. torch tells that from a signal handler, to whoever runs."""


_TORCH_ERRORS = {CollateError: RuntimeError, CollateTypeError: TypeError}
# torch gives these once in a process, so whoever comes second gets none.
_GIVEN_ONCE = (
    "The given NumPy array is not writable",
    "ComplexHalf support is experimental",
    "The PyTorch API of nested tensors",
    "Sparse CSR tensor support is in beta",
)
# torch says twice that there are more workers than cores, headrace once; JAX warns of every fork, if it is in use; and
# headrace alone tells of workers that all stream the same data.
_OTHERS = ("This DataLoader will create", "os.fork() was called", "Workers ")


def fingerprint(value: Any, *, exact_strides: bool = True) -> Fingerprint:
    """A nested tuple that is equal for values of the same types, containers, shapes, strides and bytes only.

    Args:
        exact_strides: whether strides count also for arrays, which pickle orders anew as it likes, and for tensors
            along axes of one element, where they mean nothing.
    """
    again = partial(fingerprint, exact_strides=exact_strides)
    kind = type(value)
    if isinstance(value, torch.Tensor):
        # Without elements, NumPy and torch write different strides for one and the same layout.
        strides = zip(value.stride(), value.shape, strict=True) if value.numel() else ()
        told = tuple(stride for stride, n in strides if exact_strides or n > 1)
        return (kind, value.dtype, tuple(value.shape), told, value.requires_grad, _tensor_bytes(value))
    if isinstance(value, np.ndarray):
        contents = value.tolist() if value.dtype.hasobject else value.tobytes()
        strides = value.strides if value.size and exact_strides else None
        return (kind, value.dtype.str, value.shape, strides, contents)
    if isinstance(value, np.generic):
        return (kind, value.dtype.str, value.tobytes())
    if isinstance(value, float):
        return (kind, struct.pack("<d", value))
    if isinstance(value, (str, bytes, range)):
        return (kind, value)
    if isinstance(value, Mapping):
        factory = getattr(value, "default_factory", None)
        return (kind, factory, tuple((again(key), again(value[key])) for key in value))
    if isinstance(value, Sequence):
        return (kind, tuple(map(again, value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (kind, tuple(again(getattr(value, part.name)) for part in dataclasses.fields(value)))
    return (kind, value)


def first_difference(one: Any, other: Any) -> str:
    """Where two nested tuples differ, for people."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            if mine != theirs:
                return f"[{place}]{first_difference(mine, theirs)}"
    return f" is {other!r:.300}, not {one!r:.300}"


def _tensor_bytes(tensor: torch.Tensor) -> bytes:
    values = tensor.detach().resolve_conj().resolve_neg()
    flat = torch.empty(values.numel(), dtype=values.dtype).copy_(values.reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()


def outcome(action: Callable[[], Any], *, exact_strides: bool = True) -> Fingerprint:
    """What an action returned or which error it raised, and the kinds of warning that came with it.

    headrace's own collate errors count as the torch errors that they derive from.

    Raises:
        TorchWorkerDiedError: torch said so; headrace's error has another type.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = ("returned", fingerprint(action(), exact_strides=exact_strides))
        except StopIteration:
            result = ("stopped",)
        except Exception as error:
            if type(error) is RuntimeError and _DEATH_IN_TORCH.match(str(error)):
                raise TorchWorkerDiedError(str(error)) from error
            result = ("raised", _TORCH_ERRORS.get(type(error), type(error)))
    return (*result, tuple(w.category for w in caught if not str(w.message).startswith(_GIVEN_ONCE + _OTHERS)))
