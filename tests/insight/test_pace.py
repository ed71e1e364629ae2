"""What is timed, and how seldom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.pace import Pace


def settled(duration_ns: int, cost_ns: int = 1000) -> Pace:
    pace = Pace(cost_ns)
    for _ in range(1000):
        pace.note(duration_ns)
    return pace


def timed(pace: Pace, n: int = 2**16) -> list[int]:
    return [number for number in range(n) if not number & pace.mask]


def test_everything_is_timed_at_first():
    assert Pace(1000).mask == 0


def test_what_takes_long_is_always_timed():
    assert settled(10**9).mask == 0


@given(st.integers(1, 10**9))
def test_timing_takes_its_share_of_the_time_at_most_or_is_as_seldom_as_it_gets(duration_ns):
    pace = settled(duration_ns)
    share = len(timed(pace)) / 2**16
    assert share * 1000 <= duration_ns / 1000 or share == 1 / 256


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_the_slower_pace_times_a_part_of_what_the_quicker_one_does(a, b):
    slow, quick = sorted((settled(a), settled(b)), key=lambda pace: pace.mask)
    assert set(timed(quick)) <= set(timed(slow))


def test_runs_are_timed_not_single_ones():
    numbers = timed(settled(40_000))
    assert numbers[:32] == list(range(32))
    assert numbers[32] > 32


def test_one_slow_one_in_a_hundred_is_not_forgotten():
    pace = Pace(1000)
    for number in range(1000):
        pace.note(100_000_000 if number % 50 == 0 else 1000)
    assert pace.mean_ns > 1_000_000
    assert pace.mask == 0


@pytest.mark.parametrize("duration", [0, 1])
def test_a_clock_that_stands_still_is_no_problem(duration):
    assert settled(duration).mask == 255 * 32
