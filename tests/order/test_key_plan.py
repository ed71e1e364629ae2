"""Keys are packed where headrace drew them, untouched where a user did; the plan counts what was given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import BatchSampler, RandomSampler, SequentialSampler
from headrace.base.messages import BadSample, Failed, Finished, PackedIndices, Place, PlacedKeys, Task
from headrace.order.key_plan import KeyPlan, plan_keys


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


def plan_of(keys=(), **options):
    return KeyPlan(iter(keys), **options)


@given(st.permutations(range(12)), st.integers(0, 12))
def test_any_order_of_giving(order, n):
    plan = plan_of()
    for number in order[:n]:
        plan.give_one(Task(number, [number]), Finished(number, None))
        assert plan.latest == number
    given_numbers = set(order[:n])
    assert set(range(plan.batches)) | plan.ahead == given_numbers
    assert plan.batches not in given_numbers
    assert all(number > plan.batches for number in plan.ahead)


def test_it_goes_on_from_where_an_epoch_was():
    plan = plan_of(start={"ahead": [2]}, batches=5)
    assert (plan.first, plan.batches, plan.ahead) == (5, 5, {7})
    plan.give_one(Task(5, [5]), Finished(5, None))
    assert (plan.batches, plan.ahead) == (6, {7})
    plan.give_one(Task(6, [6]), Finished(6, None))
    assert (plan.batches, plan.ahead) == (8, set())


def test_numbers_that_were_given_ahead_are_not_given_again():
    plan = plan_of("abc", start={"ahead": [1, 3]}, batches=4)
    assert [plan.next_task(1) for _ in range(4)] == [Task(4, "a", 1), Task(6, "b", 1), Task(8, "c", 1), None]


def test_an_error_of_the_sampler_takes_the_place_of_its_batch():
    error = LookupError("broken")

    def keys():
        yield "a"
        raise error

    plan = plan_of(keys())
    assert plan.next_task(0) == Task(0, "a", 0)
    failed = plan.next_task(0)
    assert type(failed) is Failed
    assert (failed.number, failed.error) == (1, error)
    assert plan.next_task(0) is None


def test_an_abandoned_plan_asks_its_sampler_for_nothing_more():
    drawn = iter("abc")
    plan = plan_of(drawn)
    plan.next_task(0)
    plan.abandon()
    assert plan.next_task(0) is None
    assert list(drawn) == ["b", "c"]


@pytest.mark.parametrize(
    ("keys", "batched", "identified"),
    [
        (PackedIndices(np.arange(3)), True, [0, 1, 2]),
        (PlacedKeys(PackedIndices(np.arange(3)), Place(0, 0, 1)), True, [0, 1, 2]),
        (["a", "b"], True, ["a", "b"]),
        ("ab", False, ["ab"]),
        (7, True, [7]),
    ],
)
def test_how_many_samples_a_batch_has_and_what_identifies_them(keys, batched, identified):
    plan, task = plan_of(batched=batched), Task(0, keys)
    assert list(plan.keys(task)) == identified
    bad = BadSample(0, 0, 0, "ValueError: bad", "")
    assert plan.give_one(task, Finished(0, "batch", (bad,))) == len(identified) - 1
    assert plan.give_one(Task(1, keys), Finished(1, "batch")) == len(identified)
