"""Draws by position: uniform, by weight, with and without replacement; each compared with the odds it should have."""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import numpy as np
import pytest

from headrace.base.generators import derive_key
from headrace.order import draws
from headrace.order.counter_rng import exponentials_at, fractions_at, key_words, scramble, words_at
from headrace.order.draws import NaturalOrder, PickedOrder, UniformDraws, draw_by_weight, pick_by_weight
from headrace.order.permutation import Permutation
from tests.needs import needs_torch
from tests.order.chi_square import SURPRISING, correlation, surprise, surprise_between

KEY = derive_key(0, 0, "test")


def first(count):
    return np.arange(count, dtype=np.uint64)


# Words and numbers


def test_the_words_never_change():
    """Checkpoints of older versions rely on these numbers."""
    assert key_words(0, 2).tolist() == [13402537867906879119, 7527734924183243991]
    assert words_at(np.array([0, 1, 2**63], dtype=np.uint64), KEY).tolist() == [
        11075475156424799710,
        7653129278209873122,
        7280917598439607273,
    ]
    assert UniformDraws(1000, 5, KEY).at(np.arange(5)).tolist() == [710, 122, 829, 248, 721]
    assert draw_by_weight(np.array([1.0, 2.0, 3.0]), 12, KEY).at(np.arange(12)).tolist() == [
        2,
        1,
        0,
        2,
        2,
        1,
        0,
        1,
        2,
        0,
        1,
        1,
    ]
    assert pick_by_weight(np.arange(10.0), 9, KEY).at(np.arange(9)).tolist() == [4, 8, 7, 5, 3, 9, 6, 1, 2]


@pytest.mark.parametrize("key", [-1, 2**128])
def test_keys_have_128_bits(key):
    with pytest.raises(OverflowError):
        key_words(key, 1)


def test_scrambling_is_a_bijection_that_keeps_zero():
    words = np.concatenate([first(100_000), first(100_000) << np.uint64(40)])
    assert len(np.unique(scramble(words))) == len(np.unique(words))
    assert scramble(first(1)).tolist() == [0]


@pytest.mark.parametrize("stride", [1, 2, 64, 10**6, 2**32])
def test_words_are_uniform_and_independent_at_any_stride(stride):
    words = words_at(first(100_000) * np.uint64(stride), KEY)
    for shift in (0, 20, 40, 56):
        bits = ((words >> np.uint64(shift)) & np.uint64(255)).astype(np.int64)
        assert surprise(np.bincount(bits, minlength=256)) < SURPRISING
        pairs = bits[:-1] // 16 * 16 + bits[1:] % 16
        assert surprise(np.bincount(pairs, minlength=256)) < SURPRISING
    assert abs(correlation(words[:-1], words[1:])) < SURPRISING


def test_words_of_neighbouring_keys_and_epochs_have_nothing_in_common():
    keys = [0, 1, 2, *(derive_key(0, epoch, "test") for epoch in range(3))]
    streams = [words_at(first(20_000), key) for key in keys]
    for one, other in itertools.combinations(streams, 2):
        assert abs(correlation(one, other)) < SURPRISING
        differing = np.unpackbits((one ^ other).view(np.uint8)).reshape(-1, 64).sum(axis=0)
        assert surprise(differing) < SURPRISING
        assert not np.isin(one, other).any()


def test_fractions_are_never_0_or_1(monkeypatch):
    from headrace.order import counter_rng

    extremes = np.array([0, 2**64 - 1], dtype=np.uint64)
    monkeypatch.setattr(counter_rng, "words_at", lambda counters, key: extremes)
    assert fractions_at(first(2), 0).tolist() == [2.0**-53, 1 - 2.0**-53]


def test_exponentials_are_logarithms_of_fractions():
    assert np.allclose(exponentials_at(first(100_000), KEY), -np.log(fractions_at(first(100_000), KEY)), rtol=1e-15)


def test_exponentials_are_right_for_the_smallest_and_the_largest_fractions(monkeypatch):
    from headrace.order import counter_rng

    fractions = np.array([2.0**-53, 2.0**-30, 0.25, 0.5, 1 - 2.0**-53, 1 - 2.0**-20])
    monkeypatch.setattr(counter_rng, "fractions_at", lambda counters, key: fractions)
    exponentials = exponentials_at(first(6), 0)
    assert (exponentials > 0).all()
    assert np.allclose(exponentials, -np.log1p(fractions - 1), rtol=1e-15)


# Uniform draws


def test_the_natural_order_is_the_positions():
    assert NaturalOrder(7).at(np.array([3, 0, 6])).tolist() == [3, 0, 6]
    assert len(NaturalOrder(7)) == 7


@pytest.mark.parametrize("n", [2, 3, 10, 1000, 2**12])
def test_uniform_draws_hit_all_numbers_equally_often(n):
    order = UniformDraws(n, 100_000, KEY)
    drawn = order.at(np.arange(len(order)))
    assert drawn.dtype == np.int64
    assert surprise(np.bincount(drawn, minlength=n)) < SURPRISING
    assert abs(correlation(drawn[:-1], drawn[1:])) < SURPRISING


@pytest.mark.parametrize("n", [3 * 2**61, 2**62, 2**63 - 1, 2**64 // 3, 10**12])
def test_uniform_draws_are_even_for_huge_numbers_too(n):
    """A remainder alone would prefer the lower two thirds of 3 * 2**61 by half."""
    drawn = UniformDraws(n, 50_000, KEY).at(np.arange(50_000))
    assert drawn.min() >= 0
    assert drawn.max() < n
    parts = (drawn / n * 60).astype(np.int64)
    assert surprise(np.bincount(parts, minlength=60)) < SURPRISING
    assert surprise(np.bincount(drawn % 64, minlength=64)) < SURPRISING


def test_the_only_number_is_always_drawn():
    assert UniformDraws(1, 9, KEY).at(np.arange(9)).tolist() == [0] * 9


@pytest.mark.parametrize("n", [0, -1, 2**63])
def test_uniform_draws_need_something_to_draw_from(n):
    with pytest.raises(ValueError, match=rf"n must lie in \[1, 2\*\*63\), got {n}"):
        UniformDraws(n, 1, 0)


# Draws by weight

WEIGHTS = np.array([0.0, 1.0, 2.0, 0.0, 0.5, 4.0, 0.0, 0.0])


@pytest.mark.parametrize("scale", [1.0, 1e-320, 1e307])
def test_weighted_draws_have_the_odds_of_their_weights(scale):
    order = draw_by_weight(WEIGHTS * scale, 100_000, KEY)
    counts = np.bincount(order.at(np.arange(len(order))), minlength=8)
    drawable = WEIGHTS > 0
    assert counts[~drawable].tolist() == [0] * 4
    tolerable = WEIGHTS * scale / (WEIGHTS * scale).max()  # the tiniest floats are coarse
    assert surprise(counts[drawable], 100_000 * (tolerable / tolerable.sum())[drawable]) < SURPRISING


def test_many_unequal_weights():
    weights = np.random.default_rng(0).pareto(1.5, 1000) * (np.arange(1000) % 3 > 0)
    drawn = draw_by_weight(weights, 300_000, KEY).at(np.arange(300_000))
    expected = 300_000 * weights / weights.sum()
    usual = expected >= 5
    counts = np.bincount(drawn, minlength=1000)
    rare = [counts[~usual].sum()], [expected[~usual].sum()]
    assert surprise(np.append(counts[usual], rare[0]), np.append(expected[usual], rare[1])) < SURPRISING
    assert (weights[drawn] > 0).all()


@pytest.mark.parametrize("fraction", [2.0**-53, 1 - 2.0**-53])
def test_the_outermost_fractions_draw_the_outermost_weights(fraction, monkeypatch):
    monkeypatch.setattr(draws, "fractions_at", lambda counters, key: np.full(len(counters), fraction))
    rng = np.random.default_rng(0)
    for _ in range(300):
        weights = rng.random(20)
        weights[[0, 1, 18, 19]] = 0
        expected = 2 if fraction < 0.5 else 17
        assert draw_by_weight(weights, 1, KEY).at(np.arange(1)).tolist() == [expected]


def test_more_weights_than_torch_allows():
    n = 2**24 + 1
    weights = np.zeros(n)
    weights[[5, n - 1]] = 1, 3
    drawn = draw_by_weight(weights, 10_000, KEY).at(np.arange(10_000))
    assert surprise([(drawn == 5).sum(), (drawn == n - 1).sum()], [2500, 7500]) < SURPRISING


def test_picks_without_replacement_are_distinct_and_have_a_weight():
    order = pick_by_weight(WEIGHTS, 4, KEY)
    assert len(order) == 4
    assert sorted(order.at(np.arange(4)).tolist()) == [1, 2, 4, 5]


def test_fewer_picks_are_the_first_of_more():
    weights = np.random.default_rng(0).random(50_000)
    everything = pick_by_weight(weights, 50_000, KEY).at(np.arange(50_000))
    assert np.array_equal(np.sort(everything), np.arange(50_000))
    for length in (1, 2, 100, 49_999):
        assert np.array_equal(pick_by_weight(weights, length, KEY).at(np.arange(length)), everything[:length])


def test_equal_waiting_times_come_in_the_order_of_the_indices(monkeypatch):
    monkeypatch.setattr(draws, "exponentials_at", lambda counters, key: np.ones(len(counters)))
    assert np.array_equal(pick_by_weight(np.ones(1000), 1000, KEY).indices, np.arange(1000))
    assert np.array_equal(pick_by_weight(np.ones(1000), 400, KEY).indices, np.arange(400))


def picks(weights, length, times):
    """How often each ordered choice comes over many keys."""
    chosen = [tuple(pick_by_weight(weights, length, key).indices) for key in range(times)]
    return count_choices(chosen, len(weights), length)


def count_choices(chosen, n, length):
    choices = list(itertools.permutations(range(n), length))
    places = {choice: place for place, choice in enumerate(choices)}
    return choices, np.bincount([places[tuple(map(int, choice))] for choice in chosen], minlength=len(choices))


def probability(choice, weights):
    left, product = weights.sum(), 1.0
    for i in choice:
        product *= weights[i] / left
        left -= weights[i]
    return product


@pytest.mark.parametrize("length", [1, 2, 3])
def test_picks_without_replacement_have_the_odds_of_one_draw_after_the_other(length):
    weights = np.array([1.0, 2.0, 3.0, 6.0])
    choices, counts = picks(weights, length, 4000)
    expected = [4000 * probability(choice, weights) for choice in choices]
    assert surprise(counts, expected) < SURPRISING


@needs_torch
def test_picks_and_draws_have_the_frequencies_of_torch():
    import torch

    weights = np.array([1.0, 2.0, 3.0, 6.0])
    generator = torch.Generator().manual_seed(0)
    rows = torch.from_numpy(weights).expand(40_000, 4)
    theirs = count_choices(torch.multinomial(rows, 2, False, generator=generator).tolist(), 4, 2)[1]
    assert surprise_between(picks(weights, 2, 4000)[1], theirs) < SURPRISING
    drawn = torch.multinomial(rows[0], 40_000, True, generator=generator).numpy()
    ours = draw_by_weight(weights, 40_000, KEY).at(np.arange(40_000))
    assert surprise_between(np.bincount(ours), np.bincount(drawn)) < SURPRISING


def test_weights_at_the_limits_of_floats_give_no_warning():
    tiny = np.array([1e308, 5e-324, 1e308, 1.0])
    assert set(pick_by_weight(tiny, 2, KEY).indices.tolist()) == {0, 2}
    assert set(draw_by_weight(tiny, 100, KEY).at(np.arange(100)).tolist()) == {0, 2}


@pytest.mark.parametrize("make", [draw_by_weight, pick_by_weight])
@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, -0.1], "finite and not negative"),
        ([1.0, np.nan], "finite and not negative"),
        ([np.inf, 1.0], "finite and not negative"),
        ([0.0, 0.0], "must not all be zero"),
        ([], "must not all be zero"),
    ],
)
def test_bad_weights_are_refused(make, weights, words):
    with pytest.raises(ValueError, match=words):
        make(np.array(weights), 1, KEY)


def test_too_few_weights_to_pick_from_are_refused():
    with pytest.raises(ValueError, match="Cannot draw 5 samples without replacement from 4 that have a weight"):
        pick_by_weight(WEIGHTS, 5, KEY)


# As orders

ORDERS = {
    "natural": (NaturalOrder(1000), 150),
    "uniform": (UniformDraws(10, 1000, KEY), 200),
    "weighted": (draw_by_weight(np.arange(1000.0), 1000, KEY), 8 * 1000 + 400),
    "without replacement": (pick_by_weight(np.arange(5000.0), 1000, KEY), 8 * 1000 + 500),
    "picked": (PickedOrder(np.arange(7, 1007), Permutation(1000, KEY)), 8 * 1000 + 500),
}


@pytest.mark.parametrize("name", ORDERS)
def test_every_position_is_the_same_however_it_is_read(name):
    order, _ = ORDERS[name]
    everything = order.at(np.arange(1000))
    assert everything.dtype == np.int64
    assert len(order) == 1000
    shuffled = np.random.default_rng(0).permutation(1000)
    assert np.array_equal(order.at(shuffled), everything[shuffled])
    assert [int(order.at(np.array([i]))[0]) for i in range(20)] == everything[:20].tolist()


@pytest.mark.parametrize("name", ORDERS)
def test_orders_pickle_with_no_more_than_they_need(name):
    order, most_bytes = ORDERS[name]
    order.at(np.arange(10))
    pickled = pickle.dumps(order, protocol=5)
    assert len(pickled) <= most_bytes
    assert np.array_equal(pickle.loads(pickled).at(np.arange(1000)), order.at(np.arange(1000)))


@pytest.mark.parametrize("name", ORDERS)
def test_orders_are_frozen(name):
    order, _ = ORDERS[name]
    with pytest.raises(dataclasses.FrozenInstanceError):
        order.key = 1


def test_weights_may_change_afterwards():
    weights = np.ones(5)
    order = draw_by_weight(weights, 100, KEY)
    before = order.at(np.arange(100))
    weights[:] = [0, 0, 0, 0, 1]
    assert np.array_equal(order.at(np.arange(100)), before)
    assert weights.tolist() == [0, 0, 0, 0, 1]
