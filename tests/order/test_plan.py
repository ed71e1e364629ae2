"""The keys of an epoch: packed where headrace drew them, untouched where a user did."""

from __future__ import annotations

import numpy as np

from headrace import BatchSampler, RandomSampler, SequentialSampler
from headrace.base.messages import PackedIndices
from headrace.order.plan import plan_keys


def test_own_batches_are_packed():
    keys = list(plan_keys(BatchSampler(SequentialSampler(range(5)), 2, False)))
    assert all(type(key) is PackedIndices for key in keys)
    assert [key.array.tolist() for key in keys] == [[0, 1], [2, 3], [4]]


def test_a_users_keys_pass_unchanged():
    batches = [["a", 1], [(2, 3)]]
    assert list(plan_keys(batches)) == batches
    assert list(plan_keys(SequentialSampler(range(3)))) == [0, 1, 2]


def test_a_users_iter_is_called_at_once_and_nothing_is_drawn_yet():
    calls = []

    class Own:
        def __iter__(self):
            calls.append("iter")
            return iter([])

    plan_keys(Own())
    assert calls == ["iter"]
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    plan_keys(BatchSampler(RandomSampler(range(5), generator=rng), 2, False))
    assert rng.bit_generator.state == before
