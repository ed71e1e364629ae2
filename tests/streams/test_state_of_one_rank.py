"""Trainers save the state of one rank: it stands for those of all ranks, and for another number of them."""

from __future__ import annotations

from itertools import islice

import pytest

import headrace
from headrace import DataLoader, StateError, Stream
from tests.streams.test_ranks import numbers

LENGTHS = [4, 7, 3, 9, 5, 6, 8, 4, 7]


def texts(known):
    return numbers(LENGTHS, known=known).shuffle().map(lambda i: [i] * (i % 3 + 1))


STREAMS = {
    "plain": lambda known: numbers(LENGTHS, known=known),
    "shuffled": lambda known: numbers(LENGTHS, known=known).shuffle(),
    "mixed": lambda known: headrace.mix(
        [numbers(LENGTHS, known=known).shuffle(), numbers([5, 5, 5, 5], known=known)], [2, 1], stop="all"
    ),
    "packed": lambda known: texts(known).pack(4),
}


def make(kind, known, even, rank, world):
    return DataLoader(STREAMS[kind](known), 3, shard=(rank, world), even=even, collate_fn=list, seed=1)


def plain(batches):
    return [[getattr(row, "tolist", lambda row=row: row)() for row in batch] for batch in batches]


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("even", ["drop", "pad", "allow"])
@pytest.mark.parametrize(("world", "later"), [(2, 2), (2, 1), (2, 3), (3, 2)])
def test_it_stands_for_those_of_all(kind, known, even, world, later):
    for n_batches in (0, 1) if even == "allow" else (0, 1, 3):
        states = []
        for rank in range(world):
            loader = make(kind, known, even, rank, world)
            list(islice(loader, n_batches))
            states.append(loader.state_dict())
        for rank in range(later):
            gathered = make(kind, known, even, rank, later)
            gathered.load_state_dict(states)
            expected = plain(gathered)
            for one in states:
                resumed = make(kind, known, even, rank, later)
                resumed.load_state_dict(one)
                assert plain(resumed) == expected


def test_a_rank_that_has_run_dry_does_not_tell_how_far_others_are():
    def loader(rank):
        return DataLoader(numbers([2, 9], known=True), 3, shard=(rank, 2), even="allow", collate_fn=list)

    one = loader(0)
    batches = list(islice(one, 2))
    assert len(batches[-1]) < 3
    with pytest.raises(StateError, match=r"has no rows left, and others may have.*Pass the states of all ranks"):
        loader(1).load_state_dict(one.state_dict())


def test_where_others_do_not_follow_it_is_refused():
    def loader(rank):
        return DataLoader(numbers(LENGTHS, known=True), 3, shard=(rank, 2), on_error="skip", collate_fn=list)

    one = loader(0)
    next(iter(one))
    with pytest.raises(StateError, match=r"rows may be left out.*Pass the states of all ranks"):
        loader(1).load_state_dict(one.state_dict())
    assert isinstance(one.dataset, Stream)
