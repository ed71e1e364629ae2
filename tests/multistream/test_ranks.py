"""Ranks have the positions among them: together they give the batches of one."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import StateError
from tests.multistream.oracle import Case, cases, take, through_json

QUICK = settings(deadline=None, max_examples=60)
N = 12


def joined(ranks, case):
    """The batches of all ranks, side by side."""
    axis = 0 if case.seq_len is None or case.batch_first else 1
    together = []
    for parts in zip(*ranks, strict=True):
        if isinstance(parts[0], dict):
            names = parts[0]
            together.append({name: np.concatenate([p[name] for p in parts], axis).tolist() for name in names})
        else:
            together.append(np.concatenate(parts, axis).tolist())
    return together


@QUICK
@given(case=cases(given="arrays"), world=st.integers(1, 4))
def test_ranks_together_give_the_batches_of_one(case, world):
    world = min(world, case.batch_size)
    ranks = [take(case.loader(shard=(rank, world)), N) for rank in range(world)]
    assert joined(ranks, case) == case.expected(N)


@QUICK
@given(case=cases(given="lists"), stop=st.integers(0, 20), data=st.data())
def test_the_state_of_one_rank_fits_any_rank_of_any_number(case, stop, data):
    before, after = (min(data.draw(st.integers(1, 4)), case.batch_size) for _ in range(2))
    loader = case.loader(shard=(data.draw(st.integers(0, before - 1)), before))
    for _ in islice(loader, stop):
        pass
    state = through_json(loader.state_dict())
    ranks = []
    for rank in range(after):
        loader = case.loader(shard=(rank, after))
        loader.load_state_dict(state)
        ranks.append(take(loader, N))
    is_over = state["epoch"] == 1
    assert joined(ranks, case) == (case.expected(N, epoch=1) if is_over else case.expected(stop + N)[stop:])


def test_ranks_are_even_though_some_positions_end_early():
    case = Case(lengths=(9, 1, 1), batch_size=3, assign="partition", cycle=False)
    ranks = [take(case.loader(shard=(rank, 3)), 100) for rank in range(3)]
    assert [len(rank) for rank in ranks] == [9, 9, 9]
    assert [batch["mask"] for batch in ranks[1]] == [[True]] + [[False]] * 8


def test_a_rank_that_has_nothing_left_goes_on_after_a_resume():
    case = Case(lengths=(9, 1), batch_size=2, assign="partition", cycle=False, seq_len=2, targets=True)
    loader = case.loader(shard=(0, 2))
    next(iter(loader))
    other = case.loader(shard=(1, 2))
    other.load_state_dict(loader.state_dict())
    rest = take(other, 100)
    assert rest == [{"data": [[0], [0]], "targets": [[-100], [-100]], "mask": [[False], [False]]}] * 4


@pytest.mark.parametrize("given", ["generators", "lists"])
@pytest.mark.parametrize("later", [1, 2, 3])
def test_the_state_of_one_rank_fits_all_and_so_do_those_of_all(given, later):
    case = Case(given=given)
    states = []
    for rank in range(2):
        loader = case.loader(shard=(rank, 2))
        for _ in islice(loader, 5):
            pass
        states.append(through_json(loader.state_dict()))
    expected = case.expected(9)[5:]
    for rank in range(later):
        for state in (states, states[::-1]):
            loader = case.loader(shard=(rank, later))
            loader.load_state_dict(state)
            assert take(loader, 4) == [batch[own(case, rank, later)] for batch in expected]
        for other, state in enumerate(states):
            loader = case.loader(shard=(rank, later))
            mine, theirs = own(case, rank, later), own(case, other, 2)
            is_there = theirs.start <= mine.start and mine.stop <= theirs.stop
            reads_again = given == "generators" and not is_there
            with pytest.warns(UserWarning, match="read again up to there") if reads_again else nullcontext():
                loader.load_state_dict(state)
            assert take(loader, 4) == [batch[own(case, rank, later)] for batch in expected]
            assert loader.state_dict()["batches"] == 9


def own(case, rank, world):
    """The positions of a rank."""
    positions = case.loader(shard=(rank, world))._positions.positions
    return slice(positions.start, positions.stop)


def test_states_of_some_ranks_or_of_different_moments_are_refused():
    case = Case(given="generators", batch_size=3)
    states = []
    for rank, n_batches in enumerate((5, 5, 5, 6)):
        loader = case.loader(shard=(min(rank, 2), 3))
        for _ in islice(loader, n_batches):
            pass
        states.append(loader.state_dict())
    with pytest.raises(StateError, match="that of position 1 is missing"):
        case.loader(shard=(0, 3)).load_state_dict([states[0], states[2]])
    with pytest.raises(StateError, match="must be of one moment"):
        case.loader(shard=(0, 3)).load_state_dict([states[0], states[1], states[3]])


def test_auto_asks_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    case = Case()
    assert take(case.loader(shard="auto"), 5) == [batch[1:2] for batch in case.expected(5)]


def test_more_ranks_than_positions():
    with pytest.raises(ValueError, match="at least 4, got 3"):
        Case().loader(shard=(0, 4))
