"""What a seed makes of a sampler: an order by position, the same for the same seed and epoch."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from tests.needs import needs_torch
from tests.order.chi_square import SURPRISING, surprise, surprise_between

WEIGHTS = [0.0, 1.0, 2.0, 3.0, 4.0] * 20

SAMPLERS = {
    "shuffle": lambda **options: RandomSampler(range(100), **options),
    "part of a shuffle": lambda **options: RandomSampler(range(100), num_samples=40, **options),
    "several shuffles": lambda **options: RandomSampler(range(100), num_samples=250, **options),
    "replacement": lambda **options: RandomSampler(range(100), replacement=True, **options),
    "subset": lambda **options: SubsetRandomSampler(range(100), **options),
    "weighted": lambda **options: WeightedRandomSampler(WEIGHTS, 100, **options),
    "weighted, without replacement": lambda **options: WeightedRandomSampler(WEIGHTS, 80, replacement=False, **options),
}


def epoch_of(sampler, seed=0, epoch=0):
    order = sampler.seeded(seed, epoch)
    return order.at(np.arange(len(order)))


def test_in_sequence_whatever_the_seed():
    sampler = SequentialSampler(range(5))
    assert epoch_of(sampler).tolist() == epoch_of(sampler, 1, 2).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", SAMPLERS)
def test_seed_and_epoch_decide_the_order(name):
    sampler = SAMPLERS[name]()
    order = epoch_of(sampler, 3, 4)
    assert len(order) == len(sampler)
    assert np.array_equal(epoch_of(SAMPLERS[name](), 3, 4), order)
    others = [epoch_of(sampler, seed, epoch) for seed, epoch in ((3, 5), (4, 4), (4, 3), (-3, 4), (10**30, 4))]
    assert not any(np.array_equal(other, order) for other in others)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_generator_of_the_users_own_decides_instead(name):
    assert SAMPLERS[name](generator=np.random.default_rng(0)).seeded(0, 0) is None


@pytest.mark.parametrize("name", SAMPLERS)
def test_global_generators_are_left_alone(name):
    np.random.seed(0)
    before = np.random.get_state()[1].tolist(), random.getstate()
    epoch_of(SAMPLERS[name]())
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before


def test_a_shuffle_has_every_index_once():
    assert sorted(epoch_of(SAMPLERS["shuffle"]())) == list(range(100))
    assert sorted(epoch_of(SAMPLERS["subset"]())) == list(range(100))
    assert len(set(epoch_of(SAMPLERS["part of a shuffle"]()))) == 40
    several = epoch_of(SAMPLERS["several shuffles"]())
    assert sorted(several[:100]) == sorted(several[100:200]) == list(range(100))
    assert several[:100].tolist() != several[100:200].tolist()
    assert len(set(several[200:])) == 50


def test_draws_for_different_purposes_have_nothing_in_common():
    orders = [epoch_of(SAMPLERS[name]()) for name in ("shuffle", "subset", "replacement")]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert (one == other).sum() < 10  # a Poisson number of mean 1


def test_a_shuffle_follows_the_length_of_the_data():
    data = [1, 2]
    sampler = RandomSampler(data)
    data.append(3)
    assert sorted(epoch_of(sampler)) == [0, 1, 2]


def test_a_shuffle_of_a_huge_dataset_costs_nothing():
    order = RandomSampler(range(10**12)).seeded(0, 0)
    assert len(order) == 10**12
    assert len(set(order.at(np.arange(10**12 - 1000, 10**12)).tolist())) == 1000


@pytest.mark.parametrize("indices", [[7, -3, 7], (7, -3, 7), np.array([7, -3, 7]), np.array([7, -3, 7], np.int16)])
def test_a_subset_may_be_any_integers(indices):
    order = epoch_of(SubsetRandomSampler(indices))
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == [-3, 7, 7]


@needs_torch
def test_a_subset_may_be_a_tensor():
    import torch

    assert sorted(epoch_of(SubsetRandomSampler(torch.tensor([5, 4, 9]))).tolist()) == [4, 5, 9]
    assert SubsetRandomSampler(torch.tensor([0.5])).seeded(0, 0) is None


@pytest.mark.parametrize("keys", [["a", "b"], [(0, 1)], [True, False], [0.5], np.array([0.5]), {1: 2}])
def test_a_subset_of_other_keys_has_no_such_order(keys):
    assert SubsetRandomSampler(keys).seeded(0, 0) is None


def test_a_subset_that_changes_does_not_change_a_running_epoch():
    indices = np.arange(10)
    order = SubsetRandomSampler(indices).seeded(0, 0)
    indices[:] = 0
    assert sorted(order.at(np.arange(10))) == list(range(10))


@pytest.mark.parametrize("replacement", [True, False])
def test_weighted_orders_follow_the_weights(replacement):
    sampler = WeightedRandomSampler([0.0, 1.0, 3.0, 0.0, 6.0], 2, replacement)
    firsts = np.array([sampler.seeded(seed, 0).at(np.arange(1))[0] for seed in range(2000)])
    counts = np.bincount(firsts, minlength=5)
    assert counts[[0, 3]].tolist() == [0, 0]
    assert surprise(counts[[1, 2, 4]], [200, 600, 1200]) < SURPRISING


@needs_torch
def test_weighted_orders_have_the_frequencies_of_torch():
    import torch
    from torch.utils import data

    weights = [0.5, 0.0, 1.0, 7.0, 2.5]
    theirs = list(data.WeightedRandomSampler(weights, 30_000, generator=torch.Generator().manual_seed(0)))
    ours = epoch_of(WeightedRandomSampler(weights, 30_000))
    drawable = [0, 2, 3, 4]
    assert surprise_between(np.bincount(ours)[drawable], np.bincount(theirs)[drawable]) < SURPRISING
    assert (ours != 1).all()


@needs_torch
def test_weights_give_the_same_order_from_any_library():
    import torch

    in_torch = WeightedRandomSampler(torch.tensor(WEIGHTS, requires_grad=True), 100, library="torch")
    in_numpy = WeightedRandomSampler(np.array(WEIGHTS), 100, library="numpy")
    assert np.array_equal(epoch_of(in_torch), epoch_of(in_numpy))


@pytest.mark.parametrize(
    ("weights", "replacement", "words"),
    [
        ([1.0, -1.0], True, "finite and not negative"),
        ([0.0, 0.0], True, "must not all be zero"),
        ([1.0, 0.0], False, "Cannot draw 2 samples without replacement from 1"),
    ],
)
def test_bad_weights_are_refused(weights, replacement, words):
    with pytest.raises(ValueError, match=words):
        WeightedRandomSampler(weights, 2, replacement).seeded(0, 0)
