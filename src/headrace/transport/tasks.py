"""Messages to a worker as bytes. Tasks that headrace plans itself are packed by hand, in a fifth of pickle's time."""

from __future__ import annotations

import pickle
import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from headrace.base.messages import PackedIndices, Place, PlacedKeys, Pull, Task

_PICKLED, _INDICES, _PULL, _PLACED, _PULLS = range(5)
_HEAD = struct.Struct("<Bqqq")  # kind, the task's number, its lane, how many samples a pull asks for
_PLACE = struct.Struct("<qqq")


def pack_message(message: Any) -> bytes:
    """The bytes of a `Task`, `BeginEpoch` or `Stop`.

    Raises:
        Exception: a key cannot be pickled, by cloudpickle neither.
    """
    if type(message) is Task and not message.leave_out:
        keys = message.keys
        if type(keys) is PackedIndices:
            return _HEAD.pack(_INDICES, message.number, message.lane, 0) + keys.array.tobytes()
        if type(keys) is PlacedKeys and type(keys.keys) is PackedIndices and keys.place.start < 2**63:
            head = _HEAD.pack(_PLACED, message.number, message.lane, 0)
            return b"".join([head, _PLACE.pack(*keys.place), keys.keys.array.tobytes()])
        if type(keys) is Pull:
            return _HEAD.pack(_PULL, message.number, message.lane, -1 if keys.count is None else keys.count)
    return bytes([_PICKLED]) + _pickle(message)


def pack_pulls(tasks: Sequence[Task]) -> bytes:
    """The bytes of several tasks of one worker that all ask for the same `Pull`."""
    keys, lane = tasks[0].keys, tasks[0].lane
    head = _HEAD.pack(_PULLS, len(tasks), lane, -1 if keys.count is None else keys.count)
    return head + array("q", [task.number for task in tasks]).tobytes()


def unpack_messages(message: memoryview) -> list[Any]:
    """The messages of these bytes."""
    kind = message[0]
    if kind == _PICKLED:
        return [pickle.loads(message[1:])]
    if kind != _PULLS:
        return [_unpack_task(kind, message)]
    _, _, lane, count = _HEAD.unpack_from(message)
    pull = _pull(count)
    return [Task(number, pull, lane) for number in array("q", bytes(message[_HEAD.size :]))]


def _unpack_task(kind: int, message: memoryview) -> Task:
    _, number, lane, count = _HEAD.unpack_from(message)
    if kind == _PULL:
        return Task(number, _pull(count), lane)
    start = _HEAD.size if kind == _INDICES else _HEAD.size + _PLACE.size
    indices = PackedIndices(np.frombuffer(message, np.int64, offset=start).copy())  # a copy may be written to
    if kind == _INDICES:
        return Task(number, indices, lane)
    return Task(number, PlacedKeys(indices, Place(*_PLACE.unpack_from(message, _HEAD.size))), lane)


@lru_cache
def _pull(count: int) -> Pull:
    return Pull(None if count < 0 else count)


def _pickle(message: Any) -> bytes:
    try:
        return pickle.dumps(message, 5)
    except Exception:  # noqa: BLE001 (keys of a type that only cloudpickle can send)
        import cloudpickle

        dumped: bytes = cloudpickle.dumps(message)
        return dumped
