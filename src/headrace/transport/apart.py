"""Values for another machine: a pickle, and its large buffers beside it, for whoever carries them to copy once."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from headrace.frameworks.framework import Array, tensor_type
from headrace.transport.encoding import cloudpickle_parts, pickle_parts
from headrace.transport.shared_memory import WORTH_SHARING

_WORTH_APART = 2**20


class Apart(NamedTuple):
    """A value in parts.

    Attributes:
        stream: its pickle.
        buffers: those that are not in it, as arrays of bytes.
    """

    stream: bytes
    buffers: list[Array]

    @property
    def n_bytes(self) -> int:
        return len(self.stream) + sum(buffer.nbytes for buffer in self.buffers)


def take_apart(value: Any) -> Apart:
    """The parts of a value, without a copy of its large buffers.

    Raises:
        Exception: the value cannot be pickled, by cloudpickle neither.
    """
    buffers: list[Array] = []
    keep = partial(_keep_small, WORTH_SHARING, buffers)
    try:
        return Apart(b"".join(pickle_parts(value, keep)), buffers)
    except Exception:  # noqa: BLE001 (lambdas, local classes, things from a script)
        buffers.clear()
        return Apart(b"".join(cloudpickle_parts(value, keep)), buffers)


def take_code_apart(value: Any) -> Apart:
    """The parts of a value with the functions and classes that the other side cannot import.

    Large arrays and tensors of it may be shared by everybody on a machine who puts it together.

    Raises:
        Exception: the value cannot be pickled.
    """
    buffers: list[Array] = []
    tensor = tensor_type()
    reducers = {} if tensor is None else {tensor: _reduce_shared_tensor}
    return Apart(b"".join(cloudpickle_parts(value, partial(_keep_small, _WORTH_APART, buffers), reducers)), buffers)


def _keep_small(smallest: int, large: list[Array], buffer: pickle.PickleBuffer) -> bool:
    """Whether the buffer stays in the pickle."""
    raw = buffer.raw()
    if raw.nbytes < smallest:
        return True
    large.append(np.frombuffer(raw, np.uint8))
    return False


def _reduce_shared_tensor(tensor: Any) -> Any:
    from headrace.frameworks.torch_tensors import is_plain, share_numpy

    if is_plain(tensor) and tensor.is_contiguous():
        return share_numpy, (tensor.numpy(),)
    return tensor.__reduce_ex__(5)


def put_together(apart: Apart, buffers: Sequence[Any] | None = None) -> Any:
    """An equal value, over these buffers or over its own.

    Raises:
        Exception: whatever unpickling raises, where the value cannot be rebuilt here.
    """
    return pickle.loads(apart.stream, buffers=apart.buffers if buffers is None else buffers)
