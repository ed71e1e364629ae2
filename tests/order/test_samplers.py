"""Samplers: what they draw, from whose generator, and how far."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headrace import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.order.samplers import EndlessSampler
from tests.needs import HAS_TORCH, needs_torch

CHUNKED = {
    "sequential": lambda rng: SequentialSampler(range(100_000)),
    "random": lambda rng: RandomSampler(range(100), generator=rng),
    "more": lambda rng: RandomSampler(range(10), num_samples=35, generator=rng),
    "replacement": lambda rng: RandomSampler(range(10), replacement=True, num_samples=70, generator=rng),
    "weighted": lambda rng: WeightedRandomSampler([1.0, 2.0, 3.0], 50, generator=rng),
}


@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_are_what_iterating_yields_as_arrays(name):
    make = CHUNKED[name]
    chunks = list(make(np.random.default_rng(0)).chunks())
    assert all(chunk.dtype == np.int64 for chunk in chunks)
    sampler = make(np.random.default_rng(0))
    indices = list(sampler)
    assert np.concatenate(chunks).tolist() == indices
    assert all(type(i) is int for i in indices)
    assert len(indices) == len(sampler)


def test_the_abstract_sampler_says_what_to_write():
    class Unfinished(Sampler):
        pass

    with pytest.raises(NotImplementedError, match=r"Unfinished must implement __iter__"):
        iter(Unfinished())


def test_sequential_follows_the_length_of_the_data():
    data = [1, 2]
    sampler = SequentialSampler(data)
    data.append(3)
    assert list(sampler) == [0, 1, 2]
    assert len(sampler) == 3


def test_random_is_a_new_permutation_each_epoch():
    sampler = RandomSampler(range(50), generator=np.random.default_rng(0))
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


def test_random_beyond_the_data_shuffles_again_and_again():
    indices = list(RandomSampler(range(10), num_samples=25, generator=np.random.default_rng(0)))
    assert sorted(indices[:10]) == sorted(indices[10:20]) == list(range(10))
    assert len(set(indices[20:])) == 5


def test_replacement_draws_uniformly():
    indices = list(RandomSampler(range(10), replacement=True, num_samples=10_000, generator=np.random.default_rng(0)))
    counts = np.bincount(indices, minlength=10)
    assert counts.sum() == 10_000
    assert abs(counts - 1000).max() < 150  # five standard deviations


@pytest.mark.parametrize("generator", [np.random.default_rng, np.random.RandomState])
def test_numpy_generators_of_both_kinds_decide_the_draws(generator):
    draws = [list(RandomSampler(range(30), generator=generator(seed))) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


SAMPLERS = {
    "random": lambda **options: RandomSampler(range(30), **options),
    "subset": lambda **options: SubsetRandomSampler(range(30), **options),
    "weighted": lambda **options: WeightedRandomSampler(np.ones(30), 30, **options),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_np_random_seed_makes_a_run_repeatable(name):
    def epochs(**options):
        np.random.seed(3)
        sampler = SAMPLERS[name](**options)
        return list(sampler), list(sampler)

    first, second = epochs(library="numpy")
    assert epochs(library="numpy") == (first, second)
    assert first != second
    if not HAS_TORCH:
        assert epochs() == (first, second)


@needs_torch
def test_with_torch_the_global_torch_generator_decides_and_numpys_is_not_touched():
    import torch

    def draws():
        torch.manual_seed(3)
        return list(RandomSampler(range(30))), list(SubsetRandomSampler(range(30)))

    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    assert draws() == draws()
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"replacement": 1}, TypeError, "replacement should be a boolean value, but got replacement=1"),
        ({"num_samples": 0}, ValueError, "num_samples should be a positive integer value, but got num_samples=0"),
        ({"num_samples": 1.5}, ValueError, r"num_samples=1\.5"),
        ({"data_source": []}, ValueError, "is the dataset empty"),
    ],
)
def test_random_refuses_wrong_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        RandomSampler(**{"data_source": range(3), **arguments})


def test_a_generator_of_another_kind_is_refused():
    import random

    with pytest.raises(TypeError, match=r"must be a torch.Generator or a numpy.random.Generator, got <random.Random"):
        list(RandomSampler(range(3), generator=random.Random(0)))


def test_subset_shuffles_the_indices_it_was_given():
    sampler = SubsetRandomSampler(["a", "b", "c", "d"], generator=np.random.default_rng(1))
    assert sorted(sampler) == ["a", "b", "c", "d"]
    assert len(sampler) == 4
    assert len({tuple(sampler) for _ in range(20)}) > 5


def test_weighted_draws_follow_the_weights():
    weights = [0.0, 1.0, 2.0, 0.0, 5.0, 0.0]
    sampler = WeightedRandomSampler(weights, 80_000, generator=np.random.default_rng(0))
    share = np.bincount(list(sampler), minlength=6) / 80_000
    assert share[[0, 3, 5]].tolist() == [0, 0, 0]
    assert np.allclose(share, np.array(weights) / 8, atol=0.008)


def test_weighted_draws_without_replacement_are_distinct_and_follow_the_weights():
    rng = np.random.default_rng(0)
    sampler = WeightedRandomSampler([1.0, 0.0, 3.0], 2, replacement=False, generator=rng)
    draws = [list(sampler) for _ in range(4000)]
    assert all(sorted(draw) == [0, 2] for draw in draws)
    assert abs(sum(draw[0] == 2 for draw in draws) / 4000 - 0.75) < 0.03


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_samples": 0}, "num_samples should be a positive integer value"),
        ({"num_samples": True}, "num_samples=True"),
        ({"replacement": None}, "replacement should be a boolean value"),
        ({"weights": [[1.0, 2.0]]}, r"weights should be a 1d sequence but given weights have shape \(1, 2\)"),
    ],
)
def test_weighted_refuses_wrong_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        WeightedRandomSampler(**{"weights": [1.0, 2.0], "num_samples": 1, **arguments})


@pytest.mark.parametrize("generator", [np.random.default_rng(0), None], ids=["numpy", "default"])
def test_more_than_2_to_the_24_weights(generator):
    n = 2**24 + 10
    weights = np.zeros(n, dtype=np.float64)
    weights[[5, n - 1]] = 1, 3  # the last one lies beyond torch's limit
    draws = list(WeightedRandomSampler(weights, 2000, generator=generator))
    assert set(draws) == {5, n - 1}
    assert 1350 < draws.count(n - 1) < 1650


def test_endless_never_ends_and_has_no_length():
    assert list(itertools.islice(EndlessSampler(), 3)) == [None] * 3
    with pytest.raises(TypeError):
        len(BatchSampler(EndlessSampler(), 2, False))


@pytest.mark.parametrize("make", [SequentialSampler, RandomSampler])
def test_data_without_a_length_is_told_what_to_do(make):
    with pytest.raises(TypeError, match=r"has no len\(\).*IterableDataset"):
        len(make(iter([1, 2])))
