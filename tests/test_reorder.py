"""Results leave once, in order, whatever order they came in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import InternalError
from headrace.reorder import ReorderBuffer


@settings(deadline=None)
@given(
    n=st.integers(0, 40),
    capacity=st.integers(1, 8),
    first=st.integers(0, 5),
    random=st.randoms(use_true_random=False),
)
def test_any_order_within_the_window_comes_out_sorted(n, capacity, first, random):
    buffer = ReorderBuffer(capacity, first)
    released, waiting = [], list(range(first, first + n))
    while waiting:
        window = [position for position in waiting if position < first + len(released) + capacity]
        position = random.choice(window)
        waiting.remove(position)
        released += buffer.put(position, f"result {position}")
        assert len(buffer) < capacity
    assert released == [f"result {position}" for position in range(first, first + n)]
    assert len(buffer) == 0


def test_a_result_is_released_as_soon_as_it_is_due():
    buffer = ReorderBuffer(3)
    assert buffer.put(2, "c") == []
    assert buffer.put(0, "a") == ["a"]
    assert len(buffer) == 1
    assert buffer.put(1, "b") == ["b", "c"]


@pytest.mark.parametrize("position", [0, 2, 4, -1])
def test_a_position_that_came_before_or_lies_outside_is_refused(position):
    buffer = ReorderBuffer(3)
    buffer.put(0, "a")
    buffer.put(2, "c")
    with pytest.raises(InternalError, match=rf"must be new and lie in \[1, 4\), got {position}"):
        buffer.put(position, "again")


@settings(deadline=None)
@given(
    n=st.integers(0, 30),
    capacity=st.integers(1, 6),
    first=st.integers(0, 5),
    absent=st.sets(st.integers(0, 40), max_size=10),
    random=st.randoms(use_true_random=False),
)
def test_positions_that_will_not_come_are_not_waited_for(n, capacity, first, absent, random):
    buffer = ReorderBuffer(capacity, first, absent)
    waiting = [position for position in range(first, first + n) if position not in absent]
    want, released = list(waiting), []
    while waiting:
        in_flight = want[len(released) : len(released) + capacity]
        position = random.choice([position for position in in_flight if position in waiting])
        waiting.remove(position)
        released += buffer.put(position, position)
        assert len(buffer) < capacity
    assert released == want


def test_the_first_positions_may_be_absent():
    assert ReorderBuffer(2, 3, {3, 4}).put(5, "f") == ["f"]
