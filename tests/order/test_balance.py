"""Balanced ranks: the samples of a step are dealt by their costs, as a function of position."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Audit, BucketBatchSampler, DataLoader, Stream, WeightedRandomSampler
from headrace.order.balance import deal_by_cost
from headrace.testing import check_loader

N = 203
COSTS = np.random.default_rng(0).lognormal(3, 1, N)


def make(rank, world, num_workers=0, *, even="drop", balance=COSTS, **options):
    workers = {"num_workers": num_workers, "engine": "threads"}
    options = {"shuffle": True, **options}
    return DataLoader(list(range(N)), 5, seed=3, shard=(rank, world), even=even, balance=balance, **workers, **options)


def rows(loader):
    return [batch.tolist() for batch in loader]


def flat(batches):
    return [row for batch in batches for row in batch]


@given(
    costs=st.lists(st.integers(0, 100), max_size=40), world=st.integers(1, 6), first=st.integers(0, 5), data=st.data()
)
def test_items_are_dealt_once_and_as_much_as_there_is_room(costs, world, first, data):
    room = [len(range(rank, len(costs), world)) for rank in range(world)]
    own = deal_by_cost(np.array(costs), room, first % world)
    assert [len(items) for items in own] == room
    assert sorted(item for items in own for item in items.tolist()) == list(range(len(costs)))


def test_ranks_have_about_as_much_to_do():
    def waits(**options):
        """What the ranks wait for each other in an epoch, as a part of all they do."""
        ranks = [rows(make(rank, 4, **options)) for rank in range(4)]
        loads = np.array([[COSTS[batch].sum() for batch in rank] for rank in ranks])
        return float((loads.max(axis=0) - loads).sum() / loads.sum())

    assert waits() < waits(balance=None) / 4
    assert waits(balance=lambda index: COSTS[index]) == waits() == waits(balance=COSTS.tolist())


@pytest.mark.parametrize("even", ["drop", "pad", "repeat", "allow"])
def test_steps_have_the_same_samples_as_without(even):
    for world in (1, 2, 3):
        balanced = [rows(make(rank, world, even=even)) for rank in range(world)]
        plain = [rows(make(rank, world, even=even, balance=None)) for rank in range(world)]
        whole = len(balanced[0]) - 1
        for step in range(whole):
            assert sorted(flat(one[step] for one in balanced)) == sorted(flat(one[step] for one in plain))
        assert [list(map(len, one)) for one in balanced] == [list(map(len, one)) for one in plain]


@pytest.mark.parametrize("even", ["drop", "allow"])
def test_it_conforms(even):
    def loader(rank, world, num_workers):
        return make(rank, world, num_workers, even=even)

    check_loader(loader, resume_on=(1, 3), may_drop=1 if even == "drop" else 0, most_states=4)


@pytest.mark.parametrize("later", [1, 2, 3])
def test_another_number_of_ranks_gets_the_rest_by_audit(later):
    audits, state, seen = [], None, []
    for rank in range(2):
        loader = make(rank, 2, even="allow")
        audits.append(loader.audit())
        batches = iter(loader)
        seen += rows(islice(batches, 7))
        state = loader.state_dict()
    for rank in range(later):
        loader = make(rank, later, even="allow")
        audits.append(loader.audit())
        loader.load_state_dict(state)
        seen += rows(loader)
    assert sorted(flat(seen)) == list(range(N))
    audit = Audit.merged(audits)
    audit.check()
    assert audit.proven == [0]


def test_trainers_see_the_same_order_at_the_sampler():
    loader = make(1, 3)
    assert list(loader.sampler) == flat(rows(loader))


def test_samplers_of_all_kinds_with_a_known_order():
    for world in (1, 2):
        loader = make(0, world, sampler=WeightedRandomSampler(np.ones(N), N), shuffle=None)
        assert len(rows(loader)) == -(-(N // world) // 5)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"dataset": range(4)}, "needs shard="),
        ({"dataset": range(4), "shard": (0, 2), "balance": [1, 2]}, "got 2 for a dataset of 4"),
        ({"dataset": Stream.from_blocks([0], list), "shard": (0, 2)}, "dataset by key"),
        ({"dataset": range(4), "shard": (0, 2), "sampler": iter([3, 1])}, "order is known ahead"),
        (
            {"dataset": range(4), "shard": (0, 2), "batch_sampler": BucketBatchSampler([1, 2, 3, 4], max_tokens=5)},
            "makes its batches itself",
        ),
    ],
)
def test_what_cannot_be_balanced_is_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        DataLoader(**{"balance": [1, 2, 3, 4], **arguments})
