"""Orders by seed: any position at once, a user's sampler in a world of its own."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from headrace import BatchSampler, BucketBatchSampler, RandomSampler, Sampler, SequentialSampler, StateError
from headrace.base.messages import Failed, Finished, PackedIndices, Place, Task
from headrace.order.seeded_order import SeededOrder, order_by_seed, seeded_order
from headrace.order.shard import Shard
from tests.needs import HAS_TORCH, needs_torch
from tests.resuming import Eager, Lazy, global_generators, own_generators

if HAS_TORCH:
    from torch.utils import data as torch_data


def order_of(items, batch_size=2, *, shard=None, drop_last=False, seed=7, batches=False):
    return SeededOrder(
        items,
        lambda: {"length": 10},
        batches=batches,
        batch_size=batch_size,
        drop_last=drop_last,
        seed=seed,
        shard=shard or Shard(),
    )


def drawn(plan):
    """What a plan asks for, one after the other; errors are raised in their turn."""
    while (task := plan.next_task(0)) is not None:
        if isinstance(task, Failed):
            raise task.error
        yield task.keys


def keys_of(order, epoch=0, **start):
    return [
        (keys.array.tolist() if isinstance(keys, PackedIndices) else keys, place)
        for keys, place in drawn(order.begin(epoch, start))
    ]


def test_batches_come_packed_with_their_place():
    assert keys_of(order_of(SequentialSampler(range(5)))) == [
        ([0, 1], Place(0, 0, 1)),
        ([2, 3], Place(0, 2, 1)),
        ([4], Place(0, 4, 1)),
    ]


def test_the_places_of_a_rank_are_those_of_the_whole_order():
    order = order_of(SequentialSampler(range(8)), shard=Shard(1, 2))
    assert keys_of(order, epoch=3) == [([1, 3], Place(3, 1, 2)), ([5, 7], Place(3, 5, 2))]


def test_single_keys():
    assert keys_of(order_of(SequentialSampler(range(2)), None)) == [(0, Place(0, 0, 1)), (1, Place(0, 1, 1))]


def test_places_of_batches_leave_room_for_their_samples():
    order = order_of(BucketBatchSampler(np.ones(9, int), 3, shuffle=False), None, batches=True)
    starts = [place.start for _, place in keys_of(order)]
    assert starts == [0, 2**32, 2 * 2**32]


@pytest.mark.parametrize("position", [0, 2, 4, 5, 9])
def test_from_any_position(position):
    order = order_of(RandomSampler(range(20)), shard=Shard(0, 1))
    whole = [index for keys, _ in keys_of(order) for index in keys]
    assert [index for keys, _ in keys_of(order, position=position) for index in keys] == whole[position:]


def test_what_was_given_ahead_is_left_out():
    order = order_of(SequentialSampler(range(10)))
    assert [keys for keys, _ in keys_of(order, position=2, ahead=[1, 3])] == [[2, 3], [6, 7]]


def test_a_whole_epoch_is_never_in_memory():
    order = order_of(RandomSampler(range(10**12)), 4)
    keys = [keys.array for keys, _ in islice(drawn(order.begin(0, {"position": 10**11})), 3)]
    assert len({int(index) for array in keys for index in array}) == 12
    assert order.n_batches(0) == 25 * 10**10


def test_a_users_sampler_is_drawn_from_in_a_world_of_its_own():
    """It finds seeded generators, and goes on where it was whatever the others do in between."""
    with own_generators(1):
        want = keys_of(order_of(Lazy(200)))
    with own_generators(2):
        before = repr(global_generators())
        found = []
        for keys, place in drawn(order_of(Lazy(200)).begin(0, {})):
            assert repr(global_generators()) == before
            found.append((keys, place))
        np.random.rand()
    assert found == want


def test_a_users_sampler_is_told_the_epoch_directly_or_in_a_batch_sampler():
    class Told(Eager):
        def set_epoch(self, epoch):
            self.told = epoch

    sampler = Told(4)
    keys_of(order_of(sampler), epoch=3)
    assert sampler.told == 3

    class Batches(BatchSampler):
        pass

    keys_of(order_of(Batches(sampler, 2, False), None, batches=True), epoch=4)
    assert sampler.told == 4


def test_an_error_of_a_users_sampler_comes_after_the_keys_before_it():
    class Breaks(Sampler):
        def __iter__(self):
            yield from range(3)
            raise LookupError("broken")

    keys = drawn(order_of(Breaks(), None).begin(0, {}))
    assert [next(keys).keys for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError, match="broken"):
        next(keys)


def test_a_subclass_that_draws_otherwise_is_a_users_own():
    class Reversed(RandomSampler):
        def __iter__(self):
            return iter(range(4)[::-1])

        chunks = None

    assert seeded_order(Reversed(range(4)), 1, 0) is None
    assert [keys for keys, _ in keys_of(order_of(Reversed(range(4))))] == [[3, 2], [1, 0]]


@needs_torch
@pytest.mark.parametrize("kind", ["SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"])
def test_torchs_samplers_are_ours(kind):
    import headrace

    arguments = {"SubsetRandomSampler": ([3, 1, 4],), "WeightedRandomSampler": ([1.0, 2.0, 3.0], 5)}.get(
        kind, (range(6),)
    )
    ours, theirs = (seeded_order(getattr(module, kind)(*arguments), 5, 2) for module in (headrace, torch_data))
    positions = np.arange(len(ours))
    assert ours.at(positions).tolist() == theirs.at(positions).tolist()


def test_a_batch_sampler_of_ours_is_seen_through():
    cut = BatchSampler(RandomSampler(range(10)), 3, True)
    order = order_by_seed(cut, SequentialSampler(range(10)), None, False, 7, Shard(), dict)
    batches = [keys for keys, _ in keys_of(order)]
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert batches == [keys for keys, _ in keys_of(order_of(RandomSampler(range(10)), 3, drop_last=True))]


def test_save_and_seek():
    order = order_of(SequentialSampler(range(20)), shard=Shard(1, 2))
    plan = order.begin(0, {})
    for number in (0, 1, 3):
        plan.give_one(Task(number, [number]), Finished(number, None))
    saved = plan.position()
    assert saved["position"] == 2 * 2 * 2
    assert (saved["ahead"], saved["cut"]) == ([1], [2, 1, 2])
    assert order.seek(0, 2) == {name: saved[name] for name in ("described", "position")}
    assert order.edge() == order.seek(0, 0) == order.begin(0, {}).position()


def test_a_plan_that_goes_on_counts_from_where_it_began():
    order = order_of(SequentialSampler(range(20)), shard=Shard(1, 2))
    plan = order.begin(0, order.seek(0, 2), batches=2)
    assert (plan.began_at, plan.batches) == (8, 2)
    plan.give_one(plan.next_task(0), Finished(0, None))
    assert plan.position() == order.seek(0, 3)


def test_check():
    order = order_of(SequentialSampler(range(20)))
    saved = {"epoch": 0, "batches": 3, "course": order.parse(order.seek(0, 3))}
    order.check(saved, is_edge=False)
    order_of(SequentialSampler(range(20)), 5, shard=Shard(2, 4)).check(saved, is_edge=False)  # is well defined
    with pytest.raises(StateError, match="seed = 7, and here it is 8"):
        order_of(SequentialSampler(range(20)), seed=8).check(saved, is_edge=False)
    with pytest.raises(StateError, match="sampler = 'SequentialSampler', and here it is 'RandomSampler'"):
        order_of(RandomSampler(range(20))).check(saved, is_edge=False)
    with pytest.raises(StateError, match="samples = 20, and here it is 21"):
        order_of(SequentialSampler(range(21))).check(saved, is_edge=False)
    with pytest.raises(StateError, match="position must be an int"):
        order.parse({**saved["course"], "position": None})
    with pytest.raises(StateError, match=r"course\.position must be 0, got 6"):
        order.check({**saved, "batches": 0}, is_edge=True)
    with pytest.raises(StateError, match=r"course\.position must be an int of at least 9, got 6"):
        order.check({**saved, "batches": 9}, is_edge=False)
