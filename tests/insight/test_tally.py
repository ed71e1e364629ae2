"""Tallies: equal for the same keys in any order, and for no others."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.insight.tally import Tally

KEYS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30)


@given(KEYS, st.randoms(use_true_random=False))
def test_the_order_and_the_kind_of_container_make_no_difference(keys, rng: random.Random):
    shuffled = rng.sample(keys, len(keys))
    assert Tally.of(keys) == Tally.of(np.array(shuffled, dtype=np.int64)) == Tally.of(iter(shuffled))
    assert Tally.of(keys) == Tally.sum(Tally.of([key]) for key in shuffled)


@given(KEYS, KEYS)
def test_only_the_same_keys_have_the_same_tally(some, others):
    assert Tally.of(some).has_same_keys(Tally.of(others)) == (sorted(some) == sorted(others))


def test_changes_that_plain_sums_would_miss_are_seen():
    assert not Tally.of([0, 3]).has_same_keys(Tally.of([1, 2]))
    assert not Tally.of([0, 0, 2, 2]).has_same_keys(Tally.of([0, 1, 1, 2]))
    assert not Tally.of([5]).has_same_keys(Tally.of([5, 5]))
    assert not Tally.of([]).has_same_keys(Tally.of([0]))


def test_ten_thousand_keys_have_ten_thousand_hashes_of_even_bits():
    for which in (0, 1):
        hashes = [Tally.of([key]).sums[which] for key in range(10_000)]
        assert len(set(hashes)) == 10_000
        ones = [sum(hash_ >> bit & 1 for hash_ in hashes) for bit in range(64)]
        assert all(abs(count - 5000) < 250 for count in ones)  # five standard deviations


def test_the_two_sums_have_hashes_of_their_own():
    pairs = [Tally.of([key]).sums for key in range(1000)]
    agreeing = sum((first ^ second).bit_count() for first, second in pairs)
    assert abs(agreeing - 32_000) < 640  # of 64,000 bits


@given(KEYS, KEYS)
def test_sums_and_differences(some, others):
    both = Tally.of(some, full=True) + Tally.of(others, full=True)
    assert both == Tally.of(some + others, full=True)
    left = both - Tally.of(others, full=True)
    assert left.has_same_keys(Tally.of(some))
    assert +left.ids == +Tally.of(some, full=True).ids


@pytest.mark.parametrize(
    "keys",
    [
        ["a", "b", "a"],
        [("train", 1), ("test", 1)],
        [1.5, b"x", None, 2**70, -(2**70)],
        [frozenset({1}), object, "\ud800", 1],
    ],
)
def test_keys_of_any_type(keys):
    assert Tally.of(keys) == Tally.of(keys[::-1])
    assert Tally.of(keys).count == len(keys)
    assert not Tally.of(keys).has_same_keys(Tally.of(keys[:-1]))
    assert not Tally.of(keys).has_same_keys(Tally.of([*keys[:-1], "other"]))
    saved = Tally.of(keys, full=True).save()
    assert Tally.load(json.loads(json.dumps(saved))).save() == saved


def test_ints_of_every_library_are_the_same_key():
    assert Tally.of([np.int32(7), np.uint8(3)]) == Tally.of([7, 3]) == Tally.of(np.array([3, 7], dtype=np.uint16))


def test_keys_that_cannot_be_pickled_count_too():
    key = lambda: None  # noqa: E731
    assert Tally.of([key]) == Tally.of([key])
    assert Tally.of([key]).count == 1


def test_another_process_gets_the_same_tally():
    keys = "[3, 'a', ('b', 2), b'c', 1.5]"
    code = f"from headrace.insight.tally import Tally; print(Tally.of({keys}).sums)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(Tally.of([3, "a", ("b", 2), b"c", 1.5]).sums)
