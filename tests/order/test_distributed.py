"""One rank's share: together the ranks have everything, alike on all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, DistributedSampler
from tests.needs import as_lists, needs_torch, without_torch


def shares(n, ranks, **options):
    return [list(DistributedSampler(range(n), ranks, rank, **options)) for rank in range(ranks)]


@settings(deadline=None)
@given(n=st.integers(1, 60), ranks=st.integers(1, 70), shuffle=st.booleans(), seed=st.integers(0, 2**31))
def test_all_ranks_together_have_every_sample_and_equal_shares(n, ranks, shuffle, seed):
    parts = shares(n, ranks, shuffle=shuffle, seed=seed)
    assert {len(part) for part in parts} == {-(-n // ranks)}
    dealt = [parts[i % ranks][i // ranks] for i in range(ranks * len(parts[0]))]
    assert sorted(dealt[:n]) == list(range(n))
    assert dealt[n:] == [dealt[i % n] for i in range(n, len(dealt))]  # the first ones again


@settings(deadline=None)
@given(n=st.integers(1, 60), ranks=st.integers(1, 70), shuffle=st.booleans())
def test_drop_last_repeats_nothing(n, ranks, shuffle):
    parts = shares(n, ranks, shuffle=shuffle, drop_last=True)
    dealt = [i for part in parts for i in part]
    assert {len(part) for part in parts} == {n // ranks}
    assert len(set(dealt)) == len(dealt) == n // ranks * ranks


def test_the_order_is_a_function_of_seed_and_epoch():
    sampler = DistributedSampler(range(40), 2, 0, seed=5)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(DistributedSampler(range(40), 2, 0, seed=6)) != first


def test_global_generators_are_left_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    list(DistributedSampler(range(10), 2, 0))
    assert np.random.get_state()[1].tolist() == before


@without_torch
def test_without_torch_seed_and_epoch_do_not_add_up():
    """Seed 1 in epoch 0 is another order than seed 0 in epoch 1."""
    later = DistributedSampler(range(40), 1, 0, seed=0)
    later.set_epoch(1)
    assert list(later) != list(DistributedSampler(range(40), 1, 0, seed=1))


def test_in_a_loader():
    sampler = DistributedSampler(range(7), num_replicas=2, rank=1, shuffle=False)
    loader = DataLoader(range(7), batch_size=3, sampler=sampler)
    assert as_lists(loader) == [[1, 3, 5], [0]]
    assert len(loader) == 2


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_refused(rank):
    with pytest.raises(ValueError, match=rf"Invalid rank {rank}, rank should be in the interval \[0, 1\]"):
        DistributedSampler(range(4), num_replicas=2, rank=rank)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_dataset_that_changed_its_length_is_refused(drop_last):
    data = list(range(10))
    sampler = DistributedSampler(data, 2, 0, drop_last=drop_last)
    if drop_last:
        del data[5:]
    else:
        data.extend(range(5))
    with pytest.raises(AssertionError, match="must keep the length"):
        list(sampler)


@without_torch
def test_without_torch_world_and_rank_must_be_given():
    with pytest.raises(RuntimeError, match="num_replicas and rank must be given"):
        DistributedSampler(range(4))


@needs_torch
def test_without_a_process_group_torch_says_so():
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        DistributedSampler(range(4))


@needs_torch
def test_world_and_rank_come_from_the_process_group():
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        sampler = DistributedSampler(range(4), shuffle=False)
        assert (sampler.num_replicas, sampler.rank) == (1, 0)
        assert list(sampler) == [0, 1, 2, 3]
    finally:
        distributed.destroy_process_group()
