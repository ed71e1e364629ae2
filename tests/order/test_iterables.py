"""Users' iterables: pulls without end, and where each worker's iteration goes on."""

from __future__ import annotations

import pytest

from headrace import StateError
from headrace.base.messages import Exhausted, Failed, Finished, IterableStart, Place, PlacedKeys, Pull, Skipped, Task
from headrace.order.iterables import IterableOrder, IterablePlan, LaneProgress
from tests.recorded.cases import Resumable
from tests.resuming import through_json

DESCRIBED = {"batch_size": 3}


def order(seed=None, batch_size=3):
    return IterableOrder(batch_size, seed, DESCRIBED, Resumable(9))


def give(plan, lane, state=None):
    """The loop gets the next batch of a worker."""
    number = plan.batches
    plan.give_one(Task(number, Pull(3), lane), Finished(number, "batch", state=state))


def end(plan, lane):
    """The iteration of a worker has ended."""
    plan.give_one(Task(plan.batches, Pull(3), lane), Exhausted(plan.batches))


def asked(plan, n):
    return [plan.next_task(0).keys for _ in range(n)]


def test_pulls_without_end():
    assert asked(order().begin(2, {}), 3) == [Pull(3)] * 3
    assert asked(order(batch_size=None).begin(2, {}), 2) == [Pull(None)] * 2


def test_with_a_seed_they_tell_the_epoch():
    assert asked(order(seed=5).begin(2, {}), 1) == [PlacedKeys(Pull(3), Place(2, 0, 0))]


def test_tasks_are_numbered_from_where_the_epoch_goes_on_and_go_to_whoever_has_its_turn():
    plan = order().begin(2, {}, batches=4)
    assert [plan.next_task(worker) for worker in (0, 1, 0)] == [
        Task(4, Pull(3), 0),
        Task(5, Pull(3), 1),
        Task(6, Pull(3), 0),
    ]


def test_each_lane_is_followed():
    plan = IterablePlan(Pull(3))
    give(plan, 0)
    give(plan, 1, {"dataset": 1, "has_ended": False})
    give(plan, 0)
    assert plan.batches == 3
    assert plan.last_lane == 0
    assert plan.lanes == {0: LaneProgress(2), 1: LaneProgress(1, {"dataset": 1, "has_ended": False})}
    end(plan, 1)
    end(plan, 2)  # which had nothing
    assert [lane for lane, of in plan.lanes.items() if of.has_ended] == [1, 2]
    assert plan.batches == 3
    assert plan.last_lane == 0


def test_an_iteration_that_says_so_has_ended_with_its_last_batch():
    plan = IterablePlan(Pull(3))
    give(plan, 0, {"iterator": 3, "has_ended": True})
    assert plan.lanes[0].has_ended


@pytest.mark.parametrize("made", [Failed(0, ValueError("bad"), {"at": 1, "has_ended": False}), Skipped(0, ())])
def test_errors_and_batches_that_are_left_out_count_as_given(made):
    plan = IterablePlan(Pull(3))
    assert plan.give_one(Task(0, Pull(3), 1), made) == 0
    assert (plan.batches, plan.last_lane) == (1, 1)
    assert plan.lanes == {1: LaneProgress(1, made.state)}


def test_how_many_samples_a_batch_has():
    plan = IterablePlan(Pull(3))
    assert plan.give_one(Task(0, Pull(3)), Finished(0, "batch")) == 3
    assert plan.give_one(Task(1, Pull(3)), Finished(1, "batch", n_samples=2)) == 2
    assert IterablePlan(Pull(None)).give_one(Task(0, Pull(None)), Finished(0, "sample")) == 1


def followed():
    plan = order().begin(2, {}, workers=3)
    plan.workers = 3
    give(plan, 0)
    give(plan, 1, {"dataset": 7, "has_ended": False})
    end(plan, 0)
    return plan


def test_every_worker_goes_on_where_it_was():
    saved = through_json(followed().position())
    again = order().begin(2, saved, batches=2, workers=3)
    assert again.starts() == (
        IterableStart(2, 1, 3, None, True),
        IterableStart(2, 1, 3, {"dataset": 7, "has_ended": False}, False),
        IterableStart(2, 0, 3, None, False),
    )
    assert saved["last_lane"] == again.after == 1
    assert list(again.ended) == [0]
    again.workers = 3
    assert again.position() == saved


def test_only_an_iteration_without_a_state_must_be_run_forward():
    plan = followed()
    assert not order().begin(2, plan.position(), batches=2).replays  # the one without a state has ended
    give(plan, 2)
    assert order().begin(2, plan.position(), batches=3).replays


def test_at_an_edge_there_is_nothing_to_tell():
    beginning = order().begin(2, {}, workers=3)
    for saved in (order().edge(), beginning.position()):
        assert saved == {"described": {"batch_size": 3, "seed": None}}
        assert order().begin(3, saved, workers=3).starts() is None


def test_seek_reads_on():
    assert order().seek(0, 4) == {"described": {"batch_size": 3, "seed": None}, "discard": 4}


def test_check():
    course = order().parse(followed().position())
    saved = {"epoch": 0, "batches": sum(lane["batches"] for lane in course["lanes"]), "course": course}
    order().check(saved, is_edge=False)
    for other in (order().edge(), order().seek(0, 4)):
        order().check({"epoch": 0, "batches": 0, "course": order().parse(other)}, is_edge=True)
    with pytest.raises(StateError, match="seed = None, and here it is 5"):
        order(seed=5).check(saved, is_edge=False)
    with pytest.raises(StateError, match=r"lanes must be a list of \d"):
        order().check({**saved, "course": {**course, "lanes": course["lanes"][:2]}}, is_edge=False)
    with pytest.raises(StateError, match="sum of the batches"):
        order().check({**saved, "batches": 99}, is_edge=False)
    with pytest.raises(StateError, match="workers must be an int"):
        order().parse({**course, "workers": None})
    with pytest.raises(StateError, match=r"lanes\[0\]\.batches must be an int"):
        order().parse({**course, "lanes": [{**lane, "batches": -1} for lane in course["lanes"]]})


def test_nobody_knows_the_number_of_batches():
    with pytest.raises(TypeError, match="does not know its number of batches"):
        order().n_batches(0)
