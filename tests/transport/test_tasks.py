"""Tasks as bytes: what comes out is what went in, and what headrace plans itself is small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.messages import BeginEpoch, PackedIndices, Place, PlacedKeys, Pull, Stop, Task
from headrace.transport.tasks import pack_message, pack_pulls, unpack_messages

NUMBERS = st.integers(-(2**63), 2**63 - 1)


def through(message):
    [unpacked] = unpack_messages(memoryview(pack_message(message)))
    return unpacked


def packed(values):
    return PackedIndices(np.array(values, np.int64))


def same(task, other):
    """Named tuples of arrays do not compare."""
    return repr(task) == repr(other) and type(task.keys) is type(other.keys)


@given(indices=st.lists(NUMBERS), number=st.integers(0, 2**62), lane=st.integers(0, 1000))
def test_packed_indices(indices, number, lane):
    task = Task(number, packed(indices), lane)
    assert same(through(task), task)
    assert len(pack_message(task)) < 40 + 8 * len(indices)


@given(indices=st.lists(NUMBERS), place=st.builds(Place, *[st.integers(0, 2**62)] * 3))
def test_placed_packed_indices(indices, place):
    task = Task(3, PlacedKeys(packed(indices), place), 1)
    assert same(through(task), task)
    assert len(pack_message(task)) < 60 + 8 * len(indices)


def test_a_place_beyond_64_bits():
    """A batch sampler's batches are 2**32 positions apart."""
    task = Task(3, PlacedKeys(packed([1, 2]), Place(0, 2**63, 1)), 1)
    assert same(through(task), task)


@pytest.mark.parametrize("count", [None, 0, 1, 10**9])
def test_pulls(count):
    assert through(Task(5, Pull(count), 2)) == Task(5, Pull(count), 2)
    placed = Task(5, PlacedKeys(Pull(count), Place(1, 0, 0)), 2)
    assert through(placed) == placed


@pytest.mark.parametrize(
    "message",
    [
        Task(0, [1, 2], 0),
        Task(0, "a key", 3),
        Task(0, PlacedKeys([("a", 1)], Place(0, 4, 2)), 0),
        BeginEpoch(3, 7),
        Stop(),
    ],
    ids=repr,
)
def test_everything_else_is_pickled(message):
    assert through(message) == message


def test_what_must_be_left_out_is_not_lost():
    task = Task(0, packed([1, 2]), 0, leave_out=(1,))
    assert through(task).leave_out == (1,)


def test_keys_that_only_cloudpickle_can_send():
    task = through(Task(0, [lambda: 3], 0))
    assert task.keys[0]() == 3


def test_indices_may_be_written_to():
    through(Task(0, packed([1, 2]), 0)).keys.array[0] = 5
    through(Task(0, PlacedKeys(packed([1, 2]), Place(0, 0, 1)), 0)).keys.keys.array[0] = 5


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=300), st.integers(0, 100), st.none() | st.integers(1, 999))
def test_many_pulls_are_one_message(numbers, lane, count):
    pull = Pull(count)
    tasks = [Task(number, pull, lane) for number in numbers]
    packed = pack_pulls(tasks)
    assert unpack_messages(memoryview(packed)) == tasks
    assert len(packed) < 40 + 8 * len(numbers)
