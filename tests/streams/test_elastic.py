"""The states of all ranks, loaded on another number of ranks: every row that nobody had comes once."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, StateError, Stream
from headrace.streams.readers import mix
from tests.streams.memory import in_memory


def of_lengths(lengths):
    """The numbers from 0 on, in blocks of these lengths."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    blocks = [list(range(start, start + n)) for start, n in zip(starts, lengths, strict=True)]
    return Stream.from_blocks(blocks, list)


def make(stream, rank, world, size, even="allow"):
    return DataLoader(stream, size, shard=(rank, world), even=even, collate_fn=list)


STREAMS = {
    "plain": lambda stream: stream,
    "shuffled": lambda stream: stream.shuffle(blocks=2),
    "filtered": lambda stream: stream.filter(lambda n: n % 3),
    "packed": lambda stream: stream.map(lambda n: [n]).pack(3),
    "limited": lambda stream: stream.skip(3).take(50),
    "mixed": lambda stream: mix([stream, in_memory(20, 3).map(lambda n: -1 - n)], stop="all"),
}


@settings(deadline=None, max_examples=80)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5) | st.lists(st.integers(0, 6), min_size=16, max_size=40),
    name=st.sampled_from(sorted(STREAMS)),
    worlds=st.lists(st.integers(1, 4), min_size=2, max_size=3),
    data=st.data(),
)
def test_every_row_comes_once_over_changes_of_ranks(lengths, name, worlds, data):
    stream = STREAMS[name](of_lengths(lengths))
    seen, states = [], None
    for life, world in enumerate(worlds):
        saved = []
        for rank in range(world):
            loader = make(stream, rank, world, data.draw(st.integers(1, 4)))
            if states is not None:
                loader.load_state_dict(states)
            n_taken = data.draw(st.integers(0, 4)) if life < len(worlds) - 1 else 10**6
            batches = iter(loader)
            for _, batch in zip(range(n_taken), batches, strict=False):
                seen += batch
            saved.append(json.loads(json.dumps(loader.state_dict())))
        states = saved
        if {state["epoch"] for state in states} != {0}:
            break  # some ranks are through
    if {state["epoch"] for state in states} != {1}:
        return
    rows = list(stream)
    if name == "packed":
        seen, rows = ([token for row in some for token in row] for some in (seen, rows))
    assert Counter(seen) == Counter(rows)


@pytest.mark.parametrize("even", ["drop", "pad", "repeat"])
def test_ranks_stay_even_after_a_change(even):
    stream = of_lengths([3, 5, 1] * 10)
    states = []
    for rank in range(2):
        loader = make(stream, rank, 2, 4, even)
        next(iter(loader))
        states.append(loader.state_dict())
    parts = []
    for rank in range(3):
        loader = make(stream, rank, 3, 4, even)
        loader.load_state_dict(states)
        parts.append(list(loader))
    assert len({len(part) for part in parts}) == 1


def test_one_rank_becomes_many():
    loader = make(in_memory(40, 4), 0, 1, 4)
    batches = iter(loader)
    seen = next(batches)
    for rank in range(3):
        part = make(in_memory(40, 4), rank, 3, 2)
        part.load_state_dict(loader.state_dict())
        seen = seen + [row for batch in part for row in batch]
    assert sorted(seen) == list(range(40))


def test_as_many_ranks_go_on_exactly():
    loaders = [make(in_memory(40, 4), rank, 2, 3) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    for batches in iterators:
        next(batches)
    states = [loader.state_dict() for loader in loaders]
    for rank, batches in enumerate(iterators):
        again = make(in_memory(40, 4), rank, 2, 3)
        again.load_state_dict(states[::-1])
        assert list(again) == list(batches)


def test_states_that_are_not_those_of_all_ranks_are_refused():
    loader = make(in_memory(40, 4), 0, 2, 3)
    next(iter(loader))
    with pytest.raises(StateError, match="one state of each rank"):
        make(in_memory(40, 4), 0, 3, 3).load_state_dict([loader.state_dict(), loader.state_dict()])


def test_before_the_first_batch_any_number_of_ranks_may_begin():
    loader = make(in_memory(40, 4), 0, 2, 3)
    other = make(in_memory(40, 4), 2, 3, 3)
    other.load_state_dict(loader.state_dict())
    assert list(other) == list(make(in_memory(40, 4), 2, 3, 3))


def test_keyed_datasets_need_one_state_only():
    loader = DataLoader(range(10), 2, seed=1)
    with pytest.raises(StateError, match="Only streams"):
        loader.load_state_dict([loader.state_dict(), loader.state_dict()])
