"""`take` and `skip`: the rows that slices of a list would leave, and no more windows counted than must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.windows import Cut, Limit, cut_windows
from tests.streams.memory import in_memory


def windows_of(limits, lengths):
    """What is left of windows of these lengths, and which of them were counted."""
    counted = []

    def count(number, stage, cuts):
        counted.append(number)
        n = lengths[number]
        for _, start, stop in cuts:
            n = len(range(n)[start:stop])
        return n

    return dict(cut_windows(limits, range(len(lengths)), count)), counted


@given(
    lengths=st.lists(st.integers(0, 5), max_size=8),
    limits=st.lists(st.builds(Limit, st.just(0), st.integers(0, 12), st.none() | st.integers(0, 12)), max_size=3),
)
def test_what_is_left_is_what_slices_leave(lengths, limits):
    rows = list(range(sum(lengths)))
    for limit in limits:
        rows = rows[limit.skip :][: limit.take]
    left, _ = windows_of(tuple(limits), lengths)
    found = []
    for number, cuts in left.items():
        first = sum(lengths[:number])
        part = list(range(first, first + lengths[number]))
        for cut in cuts:
            part = part[cut.start : cut.stop]
        found += part
    assert found == rows


def test_only_the_first_windows_are_counted():
    assert windows_of((Limit(0, 0, 5),), [4] * 100) == ({0: (), 1: (Cut(0, 0, 1),)}, [0, 1])
    left, counted = windows_of((Limit(0, 5, None),), [4] * 100)
    assert counted == [0, 1]
    assert left == {1: (Cut(0, 1, 4),)} | dict.fromkeys(range(2, 100), ())


def test_nothing_is_taken_without_counting():
    assert windows_of((Limit(0, 3, 0),), [4, 4])[0] == {}
    assert windows_of((Limit(0, 0, 0),), [4, 4]) == ({}, [])


def test_rows_are_counted_where_the_limit_stands():
    stream = in_memory(20, 3)
    assert list(stream.take(4).filter(lambda row: row % 2)) == [1, 3]
    assert list(stream.filter(lambda row: row % 2).take(4)) == [1, 3, 5, 7]
    assert list(stream.skip(2).flat_map(lambda row: [row, row]).skip(1).take(4)) == [2, 3, 3, 4]


def test_limits_are_of_each_round():
    assert list(in_memory(20, 3).take(4).repeat(2)) == [0, 1, 2, 3] * 2


@pytest.mark.parametrize("limit", ["take", "skip"])
def test_limits_that_make_no_sense_are_refused(limit):
    with pytest.raises(ValueError, match="at least 0, got -1"):
        getattr(in_memory(4, 2), limit)(-1)
    with pytest.raises(ValueError, match="before repeat"):
        getattr(in_memory(4, 2).repeat(2), limit)(1)
    with pytest.raises(ValueError, match="before pack"):
        getattr(in_memory(4, 2).pack(2), limit)(1)
