"""torch's order: samplers draw as in torch, and draw again to go on."""

from __future__ import annotations

import random
from itertools import islice

import numpy as np
import pytest

from headrace import BatchSampler, RandomSampler, Sampler, StateError
from headrace.base.messages import Failed, Finished, PackedIndices, Task
from headrace.order.torch_order import TorchOrder
from tests.resuming import (
    Counting,
    Eager,
    Lazy,
    Telling,
    global_generators,
    own_generators,
    seed_generators,
    set_generators,
    through_json,
)


def order_of(sampler, generator=None):
    return TorchOrder(sampler, generator, lambda: {"length": 10})


def keys_of(plan):
    """What a plan asks for, one after the other; errors are raised in their turn."""
    while (task := plan.next_task(0)) is not None:
        if isinstance(task, Failed):
            raise task.error
        yield task.keys


def values(plan, n=None):
    """The next n keys of a plan, or all that are left."""
    return [key.array.tolist() if isinstance(key, PackedIndices) else key for key in islice(keys_of(plan), n)]


def give(plan, *numbers):
    """The loop gets these batches."""
    for number in numbers:
        plan.give_one(Task(number, [number]), Finished(number, None))


def draw(order, given, ahead=0):
    """The first keys, `given` of which the loop gets, the position that is saved then, and the plan."""
    plan = order.begin(0, {})
    drawn = values(plan, given + ahead)
    give(plan, *range(given))
    return drawn, through_json(plan.position()), plan


SAMPLERS = {
    "ours": lambda: BatchSampler(RandomSampler(range(20)), 3, False),
    "eager": lambda: Eager(20),
    "lazy": lambda: Lazy(20),
    "with a state": lambda: Counting(20),
    "told the epoch": lambda: Telling(20),
}


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("given", [0, 1, 4])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_what_was_drawn_ahead_comes_first_and_then_the_drawing_goes_on(kind, given, ahead):
    with own_generators():
        drawn, saved, plan = draw(order_of(SAMPLERS[kind]()), given, ahead)
        generators = global_generators()
        rest = values(plan)
        set_generators(generators)
        again = order_of(SAMPLERS[kind]()).begin(0, saved, batches=given)
        assert values(again) == drawn[given:] + rest


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_replay_leaves_the_global_generators_as_they_are(kind):
    with own_generators():
        _, saved, _ = draw(order_of(SAMPLERS[kind]()), 4, 2)
        seed_generators(9)
        before = repr(global_generators())
        order_of(SAMPLERS[kind]()).begin(0, saved, batches=4)
        assert repr(global_generators()) == before


def test_a_sampler_with_a_state_is_not_drawn_from_again():
    class Watched(Counting):
        drawn = 0

        def __iter__(self):
            for key in super().__iter__():
                self.drawn += 1
                yield key

    _, saved, plan = draw(order_of(Watched(20)), 5, 2)
    rest = values(plan)
    sampler = Watched(20)
    again = order_of(sampler).begin(0, saved, batches=5)
    assert sampler.drawn == 0
    assert values(again)[2:] == rest
    assert sampler.drawn == 15


def test_generators_of_ones_own_are_set_back():
    def make():
        generator = np.random.Generator(np.random.PCG64(1))
        return order_of(BatchSampler(RandomSampler(range(20), generator=generator), 3, False), generator)

    _, saved, plan = draw(make(), 2)
    assert len(saved["replay"]["at_first"]["own"]) == 1  # it is one and the same
    assert values(make().begin(0, saved, batches=2)) == values(plan)


def test_at_the_edge_what_lasts_longer_than_an_epoch_is_put_back():
    generator = np.random.Generator(np.random.PCG64(1))
    order = order_of(Counting(4), generator)
    values(order.begin(0, {}))
    generator.random()
    saved = through_json(order.edge())
    drawn = generator.random()

    generator, sampler = np.random.Generator(np.random.PCG64(1)), Counting(4)
    order_of(sampler, generator).restore(saved)
    assert sampler.state_dict() == {"epoch": 1, "given": 0}
    assert generator.random() == drawn


def test_epochs_that_samplers_were_told_are_told_again():
    sampler = Telling(20)
    sampler.set_epoch(3)
    _, saved, plan = draw(order_of(sampler), 2)
    fresh = Telling(20)
    assert values(order_of(fresh).begin(3, saved, batches=2)) == values(plan)
    assert fresh.epoch == 3


def test_what_was_given_ahead_of_others_is_left_out():
    order = order_of(list(range(10)))
    plan = order.begin(0, {})
    values(plan, 6)
    give(plan, 0, 1, 3, 5)
    saved = through_json(plan.position())
    assert saved["ahead"] == [1, 3]
    again = order_of(list(range(10))).begin(0, saved, batches=2)
    assert values(again) == [2, 4, 6, 7, 8, 9]


def test_seek_draws_and_leaves_out():
    order = order_of(Eager(10))
    with own_generators():
        whole = values(order.begin(0, {}))
        seed_generators(0)
        assert values(order.begin(0, order.seek(0, 4), batches=4)) == whole[4:]


def test_draws_in_between_are_told_of_once():
    order = order_of(Lazy(20))
    with own_generators():
        plan = order.begin(0, {})
        for number in range(3):
            values(plan, 1)
            give(plan, number)
            random.random()
        with pytest.warns(UserWarning, match="draws random numbers as it goes"):
            plan.position()
        plan.position()


def test_a_sampler_that_draws_from_another_generator_is_not_told_of():
    order = order_of(Lazy(20))  # draws from `random`
    with own_generators():
        plan = order.begin(0, {})
        for number in range(3):
            values(plan, 1)
            give(plan, number)
            np.random.rand()
        plan.position()


def test_check():
    order = order_of(Eager(20))
    with own_generators():
        _, course, _ = draw(order, 2)
    saved = {"epoch": 0, "batches": 2, "course": order.parse(course)}
    order.check(saved, is_edge=False)
    with pytest.raises(StateError, match="length = 10, and here it is 11"):
        TorchOrder(Eager(20), None, lambda: {"length": 11}).check(saved, is_edge=False)
    replay = course["replay"]
    for name in replay:
        damaged = {**course, "replay": {key: value for key, value in replay.items() if key != name}}
        with pytest.raises(StateError, match=rf"course\.replay must be a mapping with {name}, got"):
            order.parse(damaged)
    with pytest.raises(StateError, match="given must be an int"):
        order.parse({**course, "replay": {**replay, "given": -1}})
    with pytest.raises(StateError, match="given must be 3, got 2"):
        order.check({**saved, "batches": 3}, is_edge=False)
    with pytest.raises(StateError, match="drawn must be an int of at least 2, got 1"):
        order.check({**saved, "course": {**course, "replay": {**replay, "drawn": 1}}}, is_edge=False)


def test_the_number_of_batches_is_the_samplers():
    assert order_of(BatchSampler(RandomSampler(range(20)), 3, False)).n_batches(0) == 7
    with pytest.raises(TypeError):
        order_of(iter(range(3))).n_batches(0)


def test_a_sampler_that_is_not_iterable_anew_is_asked_once_per_epoch():
    class Asked(Sampler):
        asked = 0

        def __iter__(self):
            self.asked += 1
            return iter(range(3))

    sampler = Asked()
    order = order_of(sampler)
    values(order.begin(0, {}))
    assert sampler.asked == 1
