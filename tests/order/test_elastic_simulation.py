"""A thousand ranks with sixteen workers each over a billion samples, by arithmetic: every sample comes exactly once.

Nothing is loaded. Every rank is the schedule that a loader has, and every worker a copy of its order that came through
pickle. The run is stopped twice, and goes on with other numbers of ranks; workers are killed all the time. What is
looked at are rounds (one batch of every rank) all over the epoch: the samples of a round must be just those at the
next positions of the order, which the inverse of the shuffle tells.
"""

from __future__ import annotations

import json
import pickle
import random
from collections import deque

import numpy as np
import pytest

from headrace import DataLoader
from headrace.order.permutation import Permutation
from headrace.order.shard import EVEN
from headrace.round_robin import RoundRobin

N = 10**9 + 7  # a prime: nothing divides it
BATCH = 32
WORKERS = 16
SEED = 2024
EPOCH = 3


def make_loader(rank, world, even="drop"):
    return DataLoader(range(N), BATCH, shuffle=True, seed=SEED, shard=(rank, world), even=even)


def plan_at(loader, position):
    """The epoch from where it goes on, as a state says it."""
    state = json.loads(json.dumps(loader.state_dict()))
    state["course"]["position"] = position
    return loader._epochs.schedule.begin(EPOCH, state["course"])


def keys_at(loader, position):
    """The keys of the next batch, with their place; None at the end."""
    task = plan_at(loader, position).next_task(0)
    return None if task is None else task.keys


def shuffle_of_the_epoch():
    order = make_loader(0, 1)._epochs.schedule._order(EPOCH)
    shuffle = order._permutation
    assert isinstance(shuffle, Permutation)
    return shuffle


def round_of(world, position, even="drop"):
    """The keys of one batch of each rank, from a position on."""
    keys = []
    for rank in range(world):
        loader = make_loader(rank, world, even)
        batch = keys_at(loader, position)
        keys.append(np.empty(0, np.int64) if batch is None else batch.keys.array)
    return keys


def sampled_rounds(rng, start, end, world, count):
    """Where some rounds begin between two positions: the first, the last full one, and others at random."""
    rounds = (end - start) // (BATCH * world)
    numbers = {0, rounds - 1, *(rng.randrange(rounds) for _ in range(count))}
    return [start + number * BATCH * world for number in sorted(numbers)]


def test_rounds_of_a_thousand_ranks_are_the_next_positions_through_two_changes_of_their_number():
    rng = random.Random(0)
    shuffle = shuffle_of_the_epoch()
    position, seen = 0, set()
    for world, rounds in ((1000, 9_000), (640, 20_011), (1000, None)):
        end = N if rounds is None else position + rounds * BATCH * world
        for start in sampled_rounds(rng, position, end, world, 1):
            keys = np.concatenate(round_of(world, start))
            assert np.array_equal(np.sort(shuffle.position_of(keys)), np.arange(start, start + BATCH * world))
            assert seen.isdisjoint(keys.tolist())
            seen.update(keys.tolist())
        position = end
    assert len(seen) > 8 * BATCH * 640


@pytest.mark.parametrize("even", EVEN)
def test_the_end_of_the_epoch_is_what_even_says(even):
    """When 16,007 samples are left for 1,000 ranks, these are 16 each, and 7 more."""
    world, left, shuffle = 1000, 16_007, shuffle_of_the_epoch()
    start = N - left
    keys = round_of(world, start, even)
    positions = np.sort(shuffle.position_of(np.concatenate(keys)))
    sizes = sorted({len(batch) for batch in keys})
    share, more = divmod(left, world)
    if even == "drop":
        assert sizes == [share]
        assert np.array_equal(positions, np.arange(start, N - more))
    elif even in ("allow", "agree"):
        assert sizes == [share, share + 1]
        assert np.array_equal(positions, np.arange(start, N))
    else:
        size = share + 1 if even == "pad" else BATCH
        again = size * world - left
        assert sizes == [size]
        assert np.array_equal(positions, np.concatenate([np.arange(again), np.arange(start, N)]))


def test_one_rank_hits_a_range_of_the_order_just_where_it_should():
    """Seen from the other side: who gets these positions? One batch of one rank each, at a known place in it."""
    rng, world, shuffle = random.Random(1), 1000, shuffle_of_the_epoch()
    for _ in range(200):
        position = rng.randrange(N // (BATCH * world) * BATCH * world)
        start = position - position % (BATCH * world)
        turn, rank = divmod(position - start, world)
        loader = make_loader(rank, world)
        batch = keys_at(loader, start)
        assert batch.keys.array[turn] == shuffle.at(np.array([position]))[0]
        assert batch.place == (EPOCH, start + rank, world)  # what its random numbers are keyed by


class SimulatedWorkers:
    """Sixteen workers that get tasks as three integers, finish in any order, and are killed now and then."""

    def __init__(self, order, rng):
        self.rng = rng
        self.orders = [pickle.loads(pickle.dumps(order)) for _ in range(WORKERS)]
        self.turns = RoundRobin(WORKERS, wait_for_each=False)
        self.queues = [deque() for _ in range(WORKERS)]
        self.kills = self.made = 0

    def give(self, depth, task):
        self.queues[self.turns.choose(depth)].append(task)

    def finish_one(self):
        """Some worker makes its next batch; it may be killed on the way, and its successor begins again."""
        worker = self.rng.choice([number for number, tasks in enumerate(self.queues) if tasks])
        self.made += 1
        while self.rng.random() < 0.2:
            self.orders[worker] = pickle.loads(pickle.dumps(self.orders[worker]))
            self.kills += 1
            self.made += 1
        number, start, step = self.queues[worker].popleft()
        self.turns.take_back(worker)
        return number, self.orders[worker].at(start + step * np.arange(BATCH))


def deliver(workers, tasks, depth=32):
    """What a loop gets of one rank, in order."""
    early, remaining, delivered, in_flight = {}, iter(tasks), [], 0
    while len(delivered) < len(tasks):
        while in_flight + len(early) < depth and (task := next(remaining, None)) is not None:
            workers.give(depth, task)
            in_flight += 1
        number, batch = workers.finish_one()
        in_flight -= 1
        early[number] = batch
        while len(delivered) in early:
            delivered.append(early.pop(len(delivered)))
    return delivered


@pytest.mark.parametrize("rank", [0, 499, 999])
def test_workers_that_are_killed_and_finish_in_any_order_change_nothing(rank):
    world, start, n_batches = 1000, 4_321 * BATCH * 1000, 200
    loader = make_loader(rank, world)
    undisturbed = plan_at(loader, start)
    expected = [undisturbed.next_task(0).keys for _ in range(n_batches)]
    tasks = [(number, placed.place.start, placed.place.step) for number, placed in enumerate(expected)]
    workers = SimulatedWorkers(shuffle_of_the_epoch(), random.Random(rank))
    delivered = deliver(workers, tasks)
    assert workers.kills > 20
    assert workers.made > n_batches
    assert all(np.array_equal(got, placed.keys.array) for got, placed in zip(delivered, expected, strict=True))


def test_a_state_of_any_rank_is_the_state_of_all():
    world = 1000
    states = []
    for rank in (0, 1, 517, 999):
        loader = make_loader(rank, world)
        loader.set_epoch(EPOCH)
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    assert states[0]["course"]["position"] == 5 * BATCH * world
    assert len(json.dumps(states[0])) < 500
