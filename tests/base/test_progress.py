"""Progress: counts what was given, in order or not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.progress import LaneProgress, Progress


@given(st.permutations(range(12)), st.integers(0, 12))
def test_any_order_of_giving(order, n):
    progress = Progress(0)
    for number in order[:n]:
        progress.give(number)
    given_numbers = set(order[:n])
    assert set(range(progress.batches)) | progress.ahead == given_numbers
    assert progress.batches not in given_numbers
    assert all(number > progress.batches for number in progress.ahead)


def test_it_goes_on_from_where_an_epoch_was():
    progress = Progress(0, first=5, batches=5, ahead={7})
    progress.give(5)
    assert (progress.batches, progress.ahead) == (6, {7})
    progress.give(6)
    assert (progress.batches, progress.ahead) == (8, set())


def test_each_lane_is_followed():
    progress = Progress(0)
    progress.give_from(0, None)
    progress.give_from(1, {"dataset": 1, "has_ended": False})
    progress.give_from(0, None)
    assert progress.batches == 3
    assert progress.last_lane == 0
    assert progress.lanes == {0: LaneProgress(2), 1: LaneProgress(1, {"dataset": 1, "has_ended": False})}
    progress.end_lane(1)
    progress.end_lane(2)  # which had nothing
    assert [lane for lane, of in progress.lanes.items() if of.has_ended] == [1, 2]
    assert progress.batches == 3


def test_a_stream_that_says_so_has_ended_with_its_last_batch():
    progress = Progress(0)
    progress.give_from(0, {"iterator": 3, "has_ended": True})
    assert progress.lanes[0].has_ended
