"""Shuffles by position: every number once, at any length; and no statistic tells them from true ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.generators import derive_key
from headrace.order import permutation
from headrace.order.permutation import Permutation, RepeatedPermutation
from tests.order.chi_square import SURPRISING, correlation, surprise

KEYS = [0, 1, derive_key(0, 0, "test")]
AROUND_POWERS_OF_TWO = [2**bits + d for bits in (9, 10, 12, 13, 16) for d in (-1, 0, 1)]
HUGE = [10**9, 10**12, 2**40, 2**62, 2**63 - 1]


def everything(n, key):
    return Permutation(n, key).at(np.arange(n))


@pytest.mark.parametrize("key", KEYS)
def test_every_number_comes_once_and_is_found_again(key):
    for n in [*range(300), *AROUND_POWERS_OF_TWO]:
        shuffle = Permutation(n, key)
        positions = np.arange(n)
        numbers = shuffle.at(positions)
        assert len(shuffle) == n
        assert numbers.dtype == np.int64
        assert np.array_equal(np.sort(numbers), positions), n
        assert np.array_equal(shuffle.position_of(numbers), positions), n


@pytest.mark.parametrize("n", HUGE)
def test_huge_ones_stay_in_range_repeat_nothing_and_are_inverted(n):
    shuffle = Permutation(n, derive_key(1, 0, "test"))
    sampled = np.random.default_rng(0).integers(0, n, 20_000)
    positions = np.unique(np.concatenate([np.arange(20_000), np.arange(n - 20_000, n), sampled]))
    numbers = shuffle.at(positions)
    assert numbers.min() >= 0
    assert numbers.max() < n
    assert len(np.unique(numbers)) == len(positions)
    assert np.array_equal(shuffle.position_of(numbers), positions)


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 2**63 - 1), key=st.integers(0, 2**128 - 1), data=st.data())
def test_a_position_has_its_number_whatever_it_is_read_with(n, key, data):
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    shuffle = Permutation(n, key)
    numbers = shuffle.at(positions)
    assert [int(shuffle.at(positions[i : i + 1])[0]) for i in range(len(positions))] == numbers.tolist()
    assert np.array_equal(shuffle.position_of(numbers), positions)
    assert RepeatedPermutation(n, n, key).at(positions).tolist() == numbers.tolist()


def test_long_reads_are_the_short_ones_together():
    shuffle = Permutation(100_000, 5)
    parts = [shuffle.at(np.arange(start, start + 1000)) for start in range(0, 100_000, 1000)]
    assert np.array_equal(np.concatenate(parts), shuffle.at(np.arange(100_000)))


def test_the_orders_never_change():
    """Checkpoints of older versions rely on these numbers."""
    assert everything(10, 0).tolist() == [5, 9, 7, 6, 2, 8, 3, 4, 0, 1]
    of_a_trillion = Permutation(10**12, derive_key(0, 0, "test")).at(np.arange(4))
    assert of_a_trillion.tolist() == [142513572396, 406673917396, 777394738415, 504227503420]
    assert RepeatedPermutation(4, 12, 0).at(np.arange(12)).tolist() == [3, 0, 2, 1, 2, 3, 1, 0, 0, 3, 1, 2]


@pytest.mark.parametrize("positions", [[-1], [5], [0, 5], [2**62]])
def test_positions_outside_are_refused(positions):
    with pytest.raises(IndexError, match=r"must lie in \[0, 5\)"):
        Permutation(5, 0).at(np.array(positions))
    with pytest.raises(IndexError):
        Permutation(5, 0).position_of(np.array(positions))
    with pytest.raises(IndexError):
        Permutation(0, 0).at(np.array([0]))


def test_lengths_that_cannot_be_are_refused():
    for n in (-1, 2**63):
        with pytest.raises(ValueError, match=rf"n must lie in \[0, 2\*\*63\), got {n}"):
            Permutation(n, 0)
    with pytest.raises(ValueError, match="n must be positive to draw 3 numbers, got 0"):
        RepeatedPermutation(0, 3, 0)
    assert RepeatedPermutation(0, 0, 0).at(np.arange(0)).tolist() == []


@pytest.mark.parametrize("order", [Permutation(10**9, 7), RepeatedPermutation(10, 25, 7)])
def test_they_are_frozen_equal_by_value_and_pickle_in_a_few_bytes(order):
    pickled = pickle.dumps(order)
    copy = pickle.loads(pickled)
    assert len(pickled) < 150
    assert copy == order
    assert np.array_equal(copy.at(np.arange(25)), order.at(np.arange(25)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        order.n = 3


# Statistics. What "surprising" means, and how often it happens by chance, is told in `chi_square.py`.


def code_of(orders):
    """One number per row, different for different rows."""
    return orders @ (orders.shape[1] ** np.arange(orders.shape[1]))


def order_counts(orders):
    """How often each of the n! orders comes."""
    n = orders.shape[1]
    _, counts = np.unique(code_of(orders), return_counts=True)
    return np.concatenate([counts, np.zeros(math.factorial(n) - len(counts))])


@pytest.mark.parametrize(("n", "keys"), [(2, 500), (3, 1000), (4, 2000), (5, 2000)])
def test_all_orders_of_a_few_numbers_are_equally_likely_over_keys(n, keys):
    orders = np.array([everything(n, derive_key(seed, 0, "test")) for seed in range(keys)])
    assert surprise(order_counts(orders)) < SURPRISING


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7])
def test_all_orders_of_a_few_numbers_are_equally_likely_over_passes(n):
    passes = max(20 * math.factorial(n), 20_000)
    orders = RepeatedPermutation(n, n * passes, 3).at(np.arange(n * passes)).reshape(passes, n)
    assert surprise(order_counts(orders)) < SURPRISING
    followers = code_of(orders)[:-1] % 101 * 2 + (orders[1:, 0] > orders[1:, 1])
    pairs = np.bincount(followers, minlength=202).reshape(101, 2)
    pairs = pairs[pairs.sum(axis=1) > 20]
    assert surprise(pairs[:, 0], pairs.sum(axis=1) / 2) < SURPRISING


@pytest.mark.parametrize("n", [1030, 5000])
def test_over_keys_a_position_goes_anywhere(n):
    positions = np.array([0, 1, n // 2, n - 2, n - 1])
    numbers = np.array([Permutation(n, derive_key(seed, 1, "test")).at(positions) for seed in range(3000)])
    for column in numbers.T:
        assert surprise(np.bincount(column * 40 // n, minlength=40)) < SURPRISING
        assert surprise(np.bincount(column % 8, minlength=8)) < SURPRISING
    for first, second in itertools.combinations(numbers.T, 2):
        assert abs(correlation(first, second)) < SURPRISING
        assert surprise(np.bincount((second - first) % n * 40 // n, minlength=40)) < SURPRISING


@pytest.mark.parametrize("n", [300, 5000])
def test_neighbouring_seeds_epochs_and_passes_have_nothing_in_common(n):
    def order(seed, epoch):
        return everything(n, derive_key(seed, epoch, "test"))

    passes = RepeatedPermutation(n, 65 * n, 9).at(np.arange(65 * n)).reshape(65, n)
    pairs = {
        "seeds": [(order(seed, 0), order(seed + 1, 0)) for seed in range(64)],
        "epochs": [(order(0, epoch), order(0, epoch + 1)) for epoch in range(64)],
        "swapped": [(order(1, epoch), order(epoch, 1)) for epoch in range(2, 66)],
        "passes": list(itertools.pairwise(passes)),
    }
    for name, rows in pairs.items():
        first, second = (np.concatenate(side) for side in zip(*rows, strict=True))
        assert abs(correlation(first, second)) < SURPRISING, name
        assert surprise(np.bincount((second - first) % n * 100 // n, minlength=100)) < SURPRISING, name
        assert abs((first == second).sum() - 64) < SURPRISING * 8, name  # a Poisson number of mean and variance 64


def statistics_of(numbers_at, n, lags, reads=50_000):
    """How surprising the first numbers of one order are, by several questions."""
    positions = np.arange(min(reads, n - max(lags)))
    numbers = numbers_at(positions)
    parts = parts_of(numbers, n, 32)
    yield "position and number", correlation(positions, numbers)
    yield "high bits", surprise(np.bincount(parts_of(numbers, n, 256), minlength=256))
    yield "low bits", surprise(np.bincount(numbers % 256, minlength=256)) if n > 10**6 else 0.0
    yield "turning points", turning_points(numbers)
    for lag in lags:
        later = numbers_at(positions + lag)
        differences = (later - numbers) % n
        yield f"correlation with {lag} later", correlation(numbers, later)
        yield f"difference to {lag} later", surprise(np.bincount(parts_of(differences, n, 256), minlength=256))
        yield f"pairs {lag} apart", surprise(np.bincount(parts * 32 + parts_of(later, n, 32), minlength=1024))
        low_pairs = numbers % 32 * 32 + later % 32
        yield f"low bits of pairs {lag} apart", surprise(np.bincount(low_pairs, minlength=1024))
        yield f"low bits of differences {lag} apart", surprise(np.bincount((numbers ^ later) % 128, minlength=128))


def parts_of(numbers, n, count):
    """In which of so many equal parts of [0, n) each number lies."""
    return np.minimum((numbers.astype(np.float64) * (count / n)).astype(np.int64), count - 1)


def turning_points(numbers):
    """Runs up and down: how surprising the number of peaks and valleys is."""
    rises = np.diff(numbers) > 0
    expected, variance = 2 * (len(numbers) - 2) / 3, (16 * len(numbers) - 29) / 90
    return float(((rises[1:] != rises[:-1]).sum() - expected) / math.sqrt(variance))


def lags_of(n):
    """Distances at which the grid inside the permutation could show."""
    columns = 2 ** ((n - 1).bit_length() // 2)
    return [1, 2, 3, columns // 2, columns, columns + 1, 5 * columns]


@pytest.mark.parametrize("n", [20_000, 2**17, 10**6, *HUGE])
def test_one_order_looks_random(n):
    for key in KEYS:
        for question, value in statistics_of(Permutation(n, key).at, n, lags_of(n)):
            assert value < SURPRISING, (question, key)
            assert value > -SURPRISING or "correlation" not in question, (question, key)


@pytest.mark.parametrize("n", [20_000, 10**9])
def test_those_questions_see_weak_shuffles(n, monkeypatch):
    def worst(numbers_at):
        return max(value for _, value in statistics_of(numbers_at, n, lags_of(n)))

    factor = 7_368_787
    assert worst(lambda positions: (positions * factor + 11) % n) > 10 * SURPRISING
    monkeypatch.setattr(permutation, "_ROUNDS", 2)
    assert worst(Permutation(n, KEYS[2]).at) > 10 * SURPRISING


def test_rectangles_of_the_grid_do_not_show_over_passes():
    """What betrays a network of four rounds: corners of a rectangle whose rows or columns add up."""
    n, columns, keys = 1056, 32, 500_000
    rows = n // columns
    rng = np.random.default_rng(0)
    top, bottom = rng.integers(rows // 2, size=keys), rng.integers(rows // 2, rows, size=keys)
    left, right = rng.integers(columns // 2, size=keys), rng.integers(columns // 2, columns, size=keys)
    corners = [row * columns + column for row in (top, bottom) for column in (left, right)]
    shuffle = Permutation(n, KEYS[2])
    a, b, c, d = (shuffle.in_pass(np.arange(keys), corner) for corner in corners)
    in_columns = (a ^ b ^ c ^ d) % columns
    in_rows = (a // columns - b // columns - c // columns + d // columns) % rows
    assert (in_columns == 0).sum() < keys / columns + SURPRISING * math.sqrt(keys / columns)
    assert (in_rows == 0).sum() < keys / rows + SURPRISING * math.sqrt(keys / rows)
