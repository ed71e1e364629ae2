"""Windows: every block in one of each round, by a function of seed, epoch and number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.source import Block
from headrace.streams.windows import ListedBlocks, Shuffle, WindowPlan

shuffles = st.none() | st.builds(Shuffle, st.integers(1, 9))


def blocks(n):
    return ListedBlocks(Block("file", i, i + 1) for i in range(n))


def starts(plan, numbers):
    return [block.start for number in numbers for block in plan.window(number).blocks]


@given(
    n=st.integers(0, 40), shuffle=shuffles, seed=st.integers(0, 9), epoch=st.integers(0, 3), rounds=st.integers(1, 3)
)
def test_every_block_is_in_one_window_of_each_round(n, shuffle, seed, epoch, rounds):
    plan = WindowPlan(blocks(n), shuffle, seed, epoch, rounds)
    assert len(list(plan.rounds())) == (rounds if n else 0)
    assert [number for numbers in plan.rounds() for number in numbers] == list(range(plan.n_windows))
    for numbers in plan.rounds():
        assert sorted(starts(plan, numbers)) == list(range(n))


def test_without_a_shuffle_a_window_is_a_block():
    plan = WindowPlan(blocks(5), None, seed=1, epoch=1, rounds=2)
    assert starts(plan, range(plan.n_windows)) == [0, 1, 2, 3, 4] * 2
    assert not plan.window(0).is_shuffled


def test_the_last_window_is_smaller():
    plan = WindowPlan(blocks(5), Shuffle(2), seed=0, epoch=0, per_window=2)
    assert [len(plan.window(number).blocks) for number in range(plan.n_windows)] == [2, 2, 1]
    assert plan.window(0).is_shuffled


def test_seed_epoch_and_round_give_other_orders():
    def order(seed=0, epoch=0, turn=0):
        plan = WindowPlan(blocks(50), Shuffle(4), seed, epoch, rounds=2, per_window=4)
        return starts(plan, list(plan.rounds())[turn])

    orders = [order(), order(seed=1), order(epoch=1), order(turn=1)]
    assert len(set(map(tuple, orders))) == 4
    assert order() == order()


def test_each_window_has_a_key_of_its_own():
    keys = {
        WindowPlan(blocks(8), None, seed, epoch, 2).window(number).key
        for seed in range(2)
        for epoch in range(2)
        for number in range(16)
    }
    assert len(keys) == 64
