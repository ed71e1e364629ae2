"""Draws from NumPy's generators: repeatable, and in proportion where weights say so."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.frameworks.numpy_random import NumpyRandom, draw_weighted

GENERATORS = [lambda: np.random.default_rng(4), lambda: np.random.RandomState(4), lambda: np.random.seed(4)]


@pytest.mark.parametrize("make", GENERATORS, ids=["Generator", "RandomState", "global"])
def test_every_generator_is_repeatable_and_moves_on(make):
    def draw_all():
        source = NumpyRandom(make())
        return [
            source.draw_seed(),
            source.permutation(20).tolist(),
            source.permutation(20).tolist(),
            source.integers(1000, 5).tolist(),
            source.integers(1000, 5).tolist(),
            source.weighted(np.ones(50), 5, True).tolist(),
        ]

    first = draw_all()
    assert draw_all() == first
    assert first[1] != first[2]
    assert first[3] != first[4]


@pytest.mark.parametrize("make", GENERATORS, ids=["Generator", "RandomState", "global"])
def test_seeds_use_all_63_bits(make):
    source = NumpyRandom(make())
    seeds = [source.draw_seed() for _ in range(100)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == 100
    assert max(seeds) > 2**62


def test_a_fresh_source_takes_one_draw_and_then_leaves_the_generator_alone():
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    fresh = NumpyRandom(one).fresh()
    NumpyRandom(other).draw_seed()
    fresh.permutation(100)
    assert one.bit_generator.state == other.bit_generator.state


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, -1.0], "not negative"),
        ([1.0, np.nan], "finite"),
        ([1.0, np.inf], "finite"),
        ([0.0, 0.0], "must not all be zero"),
    ],
)
@pytest.mark.parametrize("replacement", [True, False])
def test_wrong_weights_are_refused(weights, words, replacement):
    with pytest.raises(RuntimeError, match=words):
        draw_weighted(rng(), np.array(weights), 1, replacement)


def test_too_many_draws_without_replacement_are_refused():
    with pytest.raises(RuntimeError, match="Cannot draw 3 samples without replacement from 2 that have a weight"):
        draw_weighted(rng(), np.array([1.0, 0.0, 1.0]), 3, False)


def test_weightless_samples_are_never_drawn():
    weights = np.array([0.0, 1e-12, 0.0, 1.0, 0.0])
    for replacement, size in ((True, 10_000), (False, 2)):
        assert set(draw_weighted(rng(), weights, size, replacement).tolist()) <= {1, 3}


class Always:
    """A generator that always draws the same number."""

    def __init__(self, number):
        self.number = number

    def random(self, size):
        return np.full(size, self.number)


def test_both_ends_of_the_draw_stay_within_the_weights():
    weights = np.array([0.0, 0.25, 0.25, 0.0])
    assert draw_weighted(Always(0.0), weights, 1, True).tolist() == [1]
    assert draw_weighted(Always(0.5), weights, 1, True).tolist() == [2]
    assert draw_weighted(Always(np.nextafter(1, 0)), weights, 1, True).tolist() == [2]
    smallest = np.array([5e-324, 0.0])  # times 0.9 is itself again
    assert draw_weighted(Always(0.9), smallest, 1, True).tolist() == [0]


def test_weights_whose_sum_overflows_are_still_drawn_alike():
    draws = draw_weighted(rng(), np.full(4, 1e308), 4000, True)
    assert np.allclose(np.bincount(draws, minlength=4) / 4000, 0.25, atol=0.05)


@pytest.mark.parametrize("replacement", [True, False])
def test_the_first_draw_follows_the_weights_on_any_scale(replacement):
    weights, generator = np.array([1.0, 2.0, 1.0]) * 1e-300, rng()
    first = [int(draw_weighted(generator, weights, 1, replacement)[0]) for _ in range(4000)]
    assert np.allclose(np.bincount(first) / 4000, [0.25, 0.5, 0.25], atol=0.035)
