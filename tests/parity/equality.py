"""Says exactly what a value or an outcome is, so that two of them can be compared bit for bit."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from headrace import CollateError, CollateTypeError

Fingerprint = tuple[Any, ...]

_TORCH_ERRORS = {CollateError: RuntimeError, CollateTypeError: TypeError}
# torch gives these once in a process, so whoever comes second gets none.
_GIVEN_ONCE = (
    "The given NumPy array is not writable",
    "ComplexHalf support is experimental",
    "The PyTorch API of nested tensors",
    "Sparse CSR tensor support is in beta",
)


def fingerprint(value: Any) -> Fingerprint:
    """A nested tuple that is equal for values of the same types, containers, shapes, strides and bytes only."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        # Without elements, NumPy and torch write different strides for one and the same layout.
        strides = value.stride() if value.numel() else None
        return (kind, value.dtype, tuple(value.shape), strides, value.requires_grad, _tensor_bytes(value))
    if isinstance(value, np.ndarray):
        contents = value.tolist() if value.dtype.hasobject else value.tobytes()
        return (kind, value.dtype.str, value.shape, value.strides if value.size else None, contents)
    if isinstance(value, np.generic):
        return (kind, value.dtype.str, value.tobytes())
    if isinstance(value, float):
        return (kind, struct.pack("<d", value))
    if isinstance(value, (str, bytes, range)):
        return (kind, value)
    if isinstance(value, Mapping):
        factory = getattr(value, "default_factory", None)
        return (kind, factory, tuple((fingerprint(key), fingerprint(value[key])) for key in value))
    if isinstance(value, Sequence):
        return (kind, tuple(map(fingerprint, value)))
    return (kind, value)


def _tensor_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def outcome(action: Callable[[], Any]) -> Fingerprint:
    """What an action returned or which error it raised, and the kinds of warning that came with it.

    headrace's own collate errors count as the torch errors that they derive from.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = ("returned", fingerprint(action()))
        except StopIteration:
            result = ("stopped",)
        except Exception as error:  # noqa: BLE001 (the type of any error is what is compared)
            result = ("raised", _TORCH_ERRORS.get(type(error), type(error)))
    return (*result, tuple(w.category for w in caught if not str(w.message).startswith(_GIVEN_ONCE)))
