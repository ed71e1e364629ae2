"""Messages are frozen and cross process borders unharmed."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from headrace.base.messages import Exhausted, Failed, Finished, PackedIndices, Pull, Task


@pytest.mark.parametrize("message", [Pull(None), Task(3, Pull(2)), Finished(1, [2]), Exhausted(4)])
def test_messages_survive_pickling_and_cannot_be_changed(message):
    assert pickle.loads(pickle.dumps(message)) == message
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, dataclasses.fields(message)[0].name, 9)


def test_arrays_and_errors_travel_too():
    assert pickle.loads(pickle.dumps(PackedIndices(np.arange(3)))).array.tolist() == [0, 1, 2]
    assert str(pickle.loads(pickle.dumps(Failed(0, ValueError("bad")))).error) == "bad"
