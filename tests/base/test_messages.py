"""Messages are frozen and cross process borders unharmed."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from headrace.base.messages import (
    BadSample,
    BeginEpoch,
    Begun,
    Exhausted,
    Failed,
    Finished,
    PackedIndices,
    Pull,
    Skipped,
    Stop,
    Task,
)

BAD = BadSample(key=3, batch=1, worker=0, error="ValueError: bad", traceback="…")


@pytest.mark.parametrize(
    "message",
    [
        Pull(None),
        Task(3, Pull(2)),
        Task(3, [1, 2], worker=1, leave_out=(0, 1)),
        Finished(1, [2]),
        Finished(1, [2], (BAD,), fingerprint=9),
        Skipped(1, (BAD,)),
        Exhausted(4),
        BeginEpoch(2, shared_seed=5),
        Begun(2),
        BAD,
    ],
)
def test_messages_survive_pickling_and_cannot_be_changed(message):
    for protocol in (2, pickle.DEFAULT_PROTOCOL, 5):
        assert pickle.loads(pickle.dumps(message, protocol)) == message
    first = message._fields[0] if isinstance(message, tuple) else dataclasses.fields(message)[0].name
    with pytest.raises(AttributeError):
        setattr(message, first, 9)


def test_arrays_and_errors_travel_too():
    assert pickle.loads(pickle.dumps(PackedIndices(np.arange(3)), 5)).array.tolist() == [0, 1, 2]
    assert str(pickle.loads(pickle.dumps(Failed(0, ValueError("bad")))).error) == "bad"


@pytest.mark.parametrize("array", [np.arange(0), np.arange(10)[::2], np.arange(6)[::-1]])
def test_packed_indices_of_any_layout_travel(array):
    back = pickle.loads(pickle.dumps(Task(0, PackedIndices(array)), 5))
    assert back.keys.array.tolist() == array.tolist()
    assert back.keys.array.dtype == np.int64


def test_a_message_to_stop_has_nothing_to_say():
    assert pickle.loads(pickle.dumps(Stop(), 5)) == Stop()
