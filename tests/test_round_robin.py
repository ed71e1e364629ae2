"""Dealing: round and round, as torch does, and in an order that does not depend on when an end is noticed."""

from __future__ import annotations

from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.round_robin import RoundRobin


class TorchsRoundRobin:
    """`_try_put_index` of torch's DataLoader, in the same words."""

    def __init__(self, workers, capacity, in_order):
        self.workers = workers
        self.capacity = capacity
        self.in_order = in_order
        self.cycle = cycle(range(workers))
        self.status = [True] * workers
        self.tasks = [0] * workers

    def choose(self):
        for _ in range(self.workers):
            worker = next(self.cycle)
            if self.status[worker]:
                if self.in_order:
                    break
                if self.tasks[worker] < self.capacity // sum(self.status):
                    break
        else:
            return None
        self.tasks[worker] += 1
        return worker


@settings(deadline=None, max_examples=300)
@given(
    workers=st.integers(1, 5),
    prefetch=st.integers(1, 4),
    in_order=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(["choose", "choose", "choose", "back", "retire"]), st.integers(0, 99))),
)
def test_it_deals_as_torch_does(workers, prefetch, in_order, steps):
    capacity = workers * prefetch
    dealer = RoundRobin(workers, wait_for_each=in_order)
    model = TorchsRoundRobin(workers, capacity, in_order)
    in_flight = []
    for act, draw in steps:
        if act == "choose":
            chosen = dealer.choose(capacity)
            assert chosen == model.choose()
            if chosen is not None:
                in_flight.append(chosen)
        elif act == "back" and in_flight:
            worker = in_flight.pop(draw % len(in_flight))
            dealer.take_back(worker)
            model.tasks[worker] -= 1
        elif act == "retire":
            worker = draw % workers
            dealer.retire(worker)
            model.status[worker] = False
    assert dealer.all_ended is not any(model.status)


def stream(lengths, delays, capacity):
    """The order of the batches of streams of these lengths, if the end of worker w is noticed `delays[w]` tasks late.

    A worker that has ended still gets tasks until it is retired, and these give nothing.
    """
    dealer = RoundRobin(len(lengths), wait_for_each=True)
    left, asked_in_vain, order = list(lengths), [0] * len(lengths), []
    while (worker := dealer.choose(capacity)) is not None:
        if left[worker]:
            order.append((worker, lengths[worker] - left[worker]))
            left[worker] -= 1
        else:
            asked_in_vain[worker] += 1
            if asked_in_vain[worker] > delays[worker]:
                dealer.retire(worker)
        dealer.take_back(worker)
    assert dealer.all_ended
    return order


@settings(deadline=None, max_examples=300)
@given(st.data(), st.integers(1, 5))
def test_the_order_does_not_depend_on_when_an_end_is_noticed(data, workers):
    lengths = data.draw(st.lists(st.integers(0, 8), min_size=workers, max_size=workers))
    delays = data.draw(st.lists(st.integers(0, 6), min_size=workers, max_size=workers))
    order = stream(lengths, delays, capacity=2 * workers)
    # By round, and in a round by worker: whatever the delays.
    assert order == sorted(((w, k) for w in range(workers) for k in range(lengths[w])), key=lambda wk: (wk[1], wk[0]))


@given(workers=st.integers(1, 6), prefetch=st.integers(1, 4))
def test_a_slow_worker_holds_up_only_its_share(workers, prefetch):
    """Worker 0 never gives a task back; all others get new tasks for ever."""
    dealer = RoundRobin(workers, wait_for_each=False)
    dealt = [0] * workers
    for _ in range(50):
        while (worker := dealer.choose(workers * prefetch)) is not None:
            dealt[worker] += 1
        for worker in range(1, workers):
            dealer.take_back(worker)
    assert dealt[0] == prefetch
    assert all(n >= prefetch + 49 for n in dealt[1:])


def test_shares_grow_as_workers_end():
    dealer = RoundRobin(3, wait_for_each=False)
    assert [dealer.choose(6) for _ in range(7)] == [0, 1, 2, 0, 1, 2, None]
    for worker in (0, 0, 1, 1):
        dealer.take_back(worker)
    dealer.retire(0)
    assert [dealer.choose(6) for _ in range(5)] == [1, 2, 1, 1, None]
    dealer.retire(0)  # again does no harm
    dealer.take_back(0)
    dealer.retire(1)
    dealer.retire(2)
    assert dealer.choose(6) is None
    assert dealer.all_ended


def test_workers_that_are_waited_for_get_their_turn_however_slow():
    dealer = RoundRobin(2, wait_for_each=True)
    assert [dealer.choose(4) for _ in range(6)] == [0, 1, 0, 1, 0, 1]


@settings(deadline=None)
@given(workers=st.integers(1, 5), turns=st.integers(0, 12), ended=st.sets(st.integers(0, 4)))
def test_it_goes_on_after_any_turn(workers, turns, ended):
    ended = {worker for worker in ended if worker < workers}
    dealer = RoundRobin(workers, wait_for_each=True, ended=ended)
    dealt = [dealer.choose(99) for _ in range(turns)]
    later = RoundRobin(workers, wait_for_each=True, after=dealt[-1] if dealt else None, ended=ended)
    assert [later.choose(99) for _ in range(7)] == [dealer.choose(99) for _ in range(7)]
    assert dealer.all_ended == (len(ended) == workers)


def test_it_begins_with_the_first_worker():
    assert RoundRobin(3, wait_for_each=True).choose(3) == 0
    assert RoundRobin(3, wait_for_each=True, after=0).choose(3) == 1
    assert RoundRobin(3, wait_for_each=True, after=2).choose(3) == 0
    assert RoundRobin(3, wait_for_each=True, ended=[0]).choose(3) == 1
