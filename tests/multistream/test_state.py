"""A state brings any loader of the same data to the next batch, by seeking."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Dataset, IterableDataset, StateError, Stream, rng
from headrace.multistream import sequence_reader
from headrace.multistream.loader import MultiStreamDataLoader
from tests.multistream.oracle import Case, cases, plain, take, through_json
from tests.resuming import former

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

QUICK = settings(deadline=None, max_examples=50)
N = 10


def stop_after(loader, n):
    """The state after n batches, in the loop's body."""
    with loader:
        for _ in islice(loader, n):
            pass
        return through_json(loader.state_dict())


def changed(state, change):
    """A state with other values, wherever they are in it."""
    header = {name: change.get(name, value) for name, value in state.items()}
    in_course = {name: value for name, value in change.items() if name not in state}
    return {**header, "course": {**header["course"], **in_course}} if in_course else header


def go_on(loader, state, n=N):
    loader.load_state_dict(state)
    assert through_json(loader.state_dict()) == state
    return take(loader, n)


@QUICK
@given(case=cases(), stop=st.integers(0, 15), before=st.integers(0, 3), after=st.integers(0, 3))
def test_goes_on_with_the_next_batch(case, stop, before, after):
    state = stop_after(case.loader(engine="threads", num_workers=before), stop)
    rest = case.expected(stop + N)[stop:] if state["epoch"] == 0 else case.expected(N, epoch=1)
    assert go_on(case.loader(engine="threads", num_workers=after), state) == rest


@settings(deadline=None, max_examples=25)
@given(case=cases(cycle=False), stops=st.lists(st.integers(0, 6), max_size=3))
def test_stops_again_and_again(case, stops):
    whole = [batch for epoch in range(5) for batch in case.expected(1000, epoch)]
    given, state = 0, None
    for stop in stops:
        loader = case.loader()
        if state is not None:
            loader.load_state_dict(state)
        given += len(list(islice(loader, stop)))
        state = through_json(loader.state_dict())
    loader, rest = case.loader(), []
    if state is not None:
        loader.load_state_dict(state)
    while loader.state_dict()["epoch"] < 5:
        rest += [plain(batch) for batch in loader]
    assert rest == whole[given:]


def test_chunks_may_have_another_length():
    case = Case(seq_len=4)
    state = stop_after(case.loader(), 3)
    assert state["course"]["step"] == 12
    single = [case.expected(30)[k // 4][k % 4] for k in range(12, 30)]
    assert go_on(Case().loader(), state, 18) == single


def test_states_are_of_the_loop_and_not_of_what_is_read_ahead():
    case = Case(is_first=True)
    loader = case.loader(num_workers=2, engine="threads")
    with loader:
        states = [through_json(loader.state_dict())]
        states += [through_json(loader.state_dict()) for _ in islice(loader, 200)]
    whole = case.expected(202)
    for stop in (0, 1, 2, 3, 50, 127, 128, 199, 200):
        assert states[stop]["course"]["step"] == states[stop]["batches"] == stop
        assert go_on(case.loader(), states[stop], 2) == whole[stop : stop + 2]


def test_after_the_loop_comes_the_next_epoch():
    case = Case(cycle=False)
    loader = case.loader()
    assert loader.state_dict()["epoch"] == 0
    list(loader)
    state = through_json(loader.state_dict())
    assert (state["epoch"], state["batches"], state["course"]["step"]) == (1, 0, 0)
    assert go_on(case.loader(), state, 100) == case.expected(100, epoch=1)


def test_a_state_is_small():
    state = stop_after(Case(batch_size=64).loader(), 500)
    assert len(str(state)) < 2000


class Watched(Dataset):
    """Sequences that tell which of their items are asked for."""

    def __init__(self, asked, number, n):
        self.asked = asked
        self.number = number
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if not 0 <= index < self.n:
            raise IndexError(index)
        self.asked.append((self.number, index))
        return 1000 * self.number + index


def test_nothing_is_read_again_where_lengths_are_known():
    asked = []
    case = Case(lengths=(50, 70, 90), batch_size=2)
    sequences = [Watched(asked, number, n) for number, n in enumerate(case.lengths)]
    loader = MultiStreamDataLoader(sequences, 2, lengths=case.lengths)
    state = stop_after(loader, 300)
    asked.clear()
    assert go_on(loader, state, 1) == case.expected(301)[300:]
    assert len(asked) == 2


class Counting(IterableDataset):
    """Iterates by hand, and knows its state."""

    pulled = 0

    def __init__(self, start, n):
        self.start = start
        self.n = n

    def __iter__(self):
        return CountingIterator(self)


class CountingIterator:
    def __init__(self, numbers):
        self.numbers = numbers
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.numbers.n:
            raise StopIteration
        self.at += 1
        Counting.pulled += 1
        return self.numbers.start + self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("targets", [False, True])
def test_iterators_that_know_their_state_are_set(targets):
    def make():
        return MultiStreamDataLoader([Counting(0, 10**6), Counting(10**6, 10**6)], 2, targets=targets)

    whole = take(make(), 2010)
    state = stop_after(make(), 2000)
    Counting.pulled = 0
    assert go_on(make(), state, 10) == whole[2000:]
    assert Counting.pulled < 3000


# States that do not fit


def test_other_arguments_are_refused():
    state = stop_after(Case().loader(), 3)
    for name, value in {"batch_size": 2, "assign": "partition", "cycle": False, "seed": 1, "lengths": (1, 2)}.items():
        said = {"lengths": "sequences"}.get(name, name)
        with pytest.raises(StateError, match=f"taken with {said} = "):
            replace(Case(), **{name: value}).loader().load_state_dict(state)
    with pytest.raises(StateError, match="items"):
        Case(lengths=(6, 3, 9, 5)).loader().load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"headrace": 99},
        {"step": -1},
        {"step": True},
        {"epoch": None},
        {"batches": "3"},
        {"course": None},
        {"described": None},
        {"places": None},
        {"places": [[0, "a"]]},
        {"places": [[0, -1], [0, 0], [0, 0]]},
        {"marks": 3},
        {"first": None},
    ],
    ids=str,
)
def test_damaged_states_are_refused(change):
    loader = Case().loader()
    state = stop_after(loader, 3)
    with pytest.raises(StateError):
        loader.load_state_dict(changed(state, change))
    assert loader.state_dict() == state


@pytest.mark.parametrize("state", [None, 3, {}, {"headrace": 1}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(StateError, match=r"not a loader state|is damaged"):
        Case().loader().load_state_dict(state)


def test_a_state_does_not_change():
    loader = Case().loader()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    before = through_json(state)
    next(batches)
    loader.load_state_dict(state)
    state["course"]["places"][0][0] = 77
    assert through_json(loader.state_dict()) == before


def test_set_epoch_keeps_the_place_in_that_epoch():
    case = Case()
    state = stop_after(case.loader(), 5)
    loader = case.loader()
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert take(loader, 3) == case.expected(8)[5:]
    loader.load_state_dict(state)
    loader.set_epoch(2)
    assert take(loader, 3) == case.expected(3, epoch=2)
    with pytest.raises(ValueError, match="epoch"):
        loader.set_epoch(-1)


def test_running_forward_needs_no_memory():
    def numbers():
        return iter(range(10**6))

    loader = MultiStreamDataLoader([numbers], 1)
    state = former(stop_after(loader, 1))
    loader.load_state_dict(changed(state, {"step": 900_000, "places": [[0, 900_000]]}))
    tracemalloc.start()
    batches = take(loader, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert batches == [[900_000]]
    assert peak < 2_000_000


def _rows(first):
    return range(first, first + first % 3)  # some blocks are empty


def _noisy(number):
    return [number, random.random(), np.random.rand(), rng().random()]


@pytest.mark.parametrize("assign", ["shuffle", "partition"])
@pytest.mark.parametrize("cycle", [True, False])
def test_streams_that_draw_resume_anywhere(assign, cycle, monkeypatch):
    """What a window draws does not depend on how many items are read at a time, nor on where reading begins."""
    monkeypatch.setattr(sequence_reader, "_SKIPPED", 4)

    def make():
        streams = [Stream.from_blocks(range(i, i + 9), _rows).map(_noisy) for i in range(4)]
        return MultiStreamDataLoader(streams, 2, assign=assign, cycle=cycle, seq_len=3, seed=5, collate_fn=repr)

    with make() as loader:
        whole = list(map(plain, islice(loader, N)))
    assert len(whole) > 3
    for stop in range(len(whole)):
        with make() as loader:
            loader.load_state_dict(stop_after(make(), stop) if stop else loader.state_dict())
            assert list(map(plain, islice(loader, len(whole) - stop))) == whole[stop:]
