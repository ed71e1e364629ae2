"""Streams of users' own go on where they were: by the state that they know, or by being run forward."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, IterableDataset, StateError, get_worker_info, rng
from tests.needs import as_lists, needs_torch
from tests.resuming import (
    DRAW,
    INLINE,
    Way,
    epochs_of,
    interrupted,
    own_generators,
    plain,
    run,
    seed_generators,
    stop_after,
    through_json,
    ways,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:The dataset .* is iterated again"),
]


class Numbers(IterableDataset):
    """Every worker's own part of n numbers; odd workers have a third of it only. Knows no state."""

    def __init__(self, n, draw="nothing"):
        self.n = n
        self.draw = draw
        self.begun = 0

    def part(self):
        self.begun += 1
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return range(first, self.n if first % 2 == 0 else self.n // 3, step)

    def __iter__(self):
        for number in self.part():
            yield number, DRAW[self.draw]()


class Generated(Numbers):
    """Its generator takes up the state that it finds when it begins."""

    def __init__(self, n, draw="nothing"):
        super().__init__(n, draw)
        self.given = 0

    def __iter__(self):
        start, self.given = self.given, 0
        for i, number in enumerate(self.part()):
            if i >= start:
                self.given = i + 1
                yield number, DRAW[self.draw]()
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class ItsOwnIterator(Numbers):
    """Begins anew in `__iter__`, so that a state must be loaded after it."""

    def __iter__(self):
        self.numbers = self.part()
        self.given = 0
        return self

    def __next__(self):
        if self.given == len(self.numbers):
            raise StopIteration
        self.given += 1
        return self.numbers[self.given - 1], DRAW[self.draw]()

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class ByIterator(Numbers):
    """Whose iterator knows the state."""

    def __iter__(self):
        self.begun += 1
        return iter(ItsOwnIterator(self.n, self.draw))


STREAMS = {kind.__name__: kind for kind in (Numbers, Generated, ItsOwnIterator, ByIterator)}
STATEFUL = [kind for kind in STREAMS.values() if kind is not Numbers]


def loader_of(kind, n, *, way=INLINE, draw="nothing", batch_size=2, **others):
    return DataLoader(STREAMS[kind](n, draw), batch_size=batch_size, **way.arguments(), **others)


def streams(draws):
    return {
        "kind": st.sampled_from(list(STREAMS)),
        "n": st.integers(0, 50),
        "draw": st.sampled_from(draws),
        "batch_size": st.sampled_from([1, 2, 5, None]),
        "drop_last": st.booleans(),
        "in_order": st.booleans(),
        "stops": st.lists(st.integers(1, 20), min_size=1, max_size=3),
        "data": st.data(),
    }


def check(first, kind, n, draw, batch_size, drop_last, in_order, stops, data, *kinds, **others):
    """The first way decides how many streams there are, up to the end of the epoch; then the next one does."""
    drop_last = drop_last and batch_size is not None
    arguments = {"draw": draw, "batch_size": batch_size, "drop_last": drop_last, "in_order": in_order, **others}
    on_the_way = [first, *(data.draw(ways(*kinds)) for _ in stops)]

    def make(way):
        return loader_of(kind, n, way=way, **arguments)

    with own_generators():
        want = run(make(first), 1)
        seed_generators(0)
        got = interrupted(make, stops, on_the_way, 1, keeps=False)
    assert got == want if in_order else sorted(map(repr, got)) == sorted(map(repr, want))


@settings(deadline=None, max_examples=80)
@given(**streams(list(DRAW)))
def test_with_a_seed(kind, n, draw, batch_size, drop_last, in_order, stops, data):
    check(INLINE, kind, n, draw, batch_size, drop_last, in_order, stops, data, "inline", seed=5)


@settings(deadline=None, max_examples=25)
@given(first=ways("threads"), **streams(["nothing", "rng"]))
def test_with_a_seed_and_threads(first, kind, n, draw, batch_size, drop_last, in_order, stops, data):
    check(first, kind, n, draw, batch_size, drop_last, in_order, stops, data, "inline", "threads", seed=5)


@settings(deadline=None, max_examples=5)
@given(first=ways("fork"), **streams(["random", "numpy"]))
def test_with_a_seed_and_processes(first, kind, n, draw, batch_size, drop_last, in_order, stops, data):
    check(first, kind, n, draw, batch_size, drop_last, in_order, stops[:1], data, "fork", seed=5)


@settings(deadline=None, max_examples=40)
@given(first=ways("inline", "threads"), **streams(["nothing"]))
def test_without_a_seed(first, kind, n, draw, batch_size, drop_last, in_order, stops, data):
    check(first, kind, n, draw, batch_size, drop_last, in_order, stops, data, "inline", "threads")


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("persistent", [False, True])
def test_further_epochs(kind, persistent):
    """After the epoch that was gone on with, this loader's own number of workers counts."""
    two = Way("threads", 2, persistent=persistent)

    def make(way):
        return loader_of(kind, 23, way=way, draw="rng", seed=3)

    want = run(make(two), 3)
    assert interrupted(make, [3, 4, 12], [two] * 4, 3, keeps=False) == want
    _, state = stop_after(make(two), 3, 1)
    with make(INLINE) as loader:
        loader.load_state_dict(state)
        first = [plain(batch) for batch in loader]
        assert [batch for epoch, batch in want if epoch == 0][3:] == first
        second = list(epochs_of(loader, 1, 2))
    assert second == [(epoch, batch) for epoch, batch in run(make(INLINE), 2) if epoch == 1]


# How streams are begun


class Noting(ItsOwnIterator):
    """Notes what is called."""

    def __init__(self, n):
        super().__init__(n)
        self.calls = []

    def __iter__(self):
        self.calls.append("iter")
        return super().__iter__()

    def load_state_dict(self, state):
        self.calls.append("load")
        super().load_state_dict(state)


@pytest.mark.parametrize("seed", [None, 3])
def test_iter_is_called_once_also_on_resume(seed):
    first, second = Noting(10), Noting(10)
    loader, other = (DataLoader(stream, batch_size=2, seed=seed) for stream in (first, second))
    next(iter(loader))
    assert first.calls == ["iter"]
    other.load_state_dict(through_json(loader.state_dict()))
    assert second.calls == []
    assert len(as_lists(batch[0] for batch in other)) == 4
    assert second.calls.count("iter") == 1


@pytest.mark.parametrize("kind", STREAMS)
def test_iter_is_called_once_for_each_epoch(kind):
    stream = STREAMS[kind](10)
    loader = DataLoader(stream, batch_size=2)
    for epoch in range(3):
        assert len(list(loader)) == 5
        assert stream.begun == epoch + 1


def test_a_dataset_that_is_its_own_iterator_gets_its_state_after_iter():
    stream = Noting(10)
    _, state = stop_after(DataLoader(Noting(10), batch_size=2), 2, 1)
    loader = DataLoader(stream, batch_size=2)
    loader.load_state_dict(state)
    iter(loader).begin_now()
    assert stream.calls[-2:] == ["iter", "load"]


def test_a_generator_gets_its_state_before_iter():
    class Strict(Generated):
        def __iter__(self):
            assert self.given == 4
            return super().__iter__()

    _, state = stop_after(loader_of("Generated", 10), 2, 1)
    loader = DataLoader(Strict(10), batch_size=2)
    loader.load_state_dict(state)
    assert [plain(batch)[0] for batch in loader] == [[4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("of_the_iterator", [False, True])
def test_a_stream_that_knows_its_state_is_not_run_forward(of_the_iterator):
    pulled = []

    class Watched(ItsOwnIterator):
        def __next__(self):
            sample = super().__next__()
            pulled.append(sample[0])
            return sample

    class Outer(Numbers):
        def __iter__(self):
            return iter(Watched(self.n))

    def make():
        return DataLoader((Outer if of_the_iterator else Watched)(10), batch_size=2)

    _, state = stop_after(make(), 3, 1)
    pulled.clear()
    loader = make()
    loader.load_state_dict(state)
    assert [plain(batch)[0] for batch in loader] == [[6, 7], [8, 9]]
    assert pulled == [6, 7, 8, 9]


@pytest.mark.filterwarnings("error:The dataset .* is iterated again")
def test_a_stream_that_knows_no_state_is_told_of():
    _, state = stop_after(loader_of("Numbers", 10), 2, 1)
    loader = loader_of("Numbers", 10)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"The dataset Numbers is iterated again .* has no state_dict\(\)"):
        next(iter(loader))


@pytest.mark.filterwarnings("error:The dataset .* is iterated again")
@pytest.mark.parametrize("kind", [kind.__name__ for kind in STATEFUL])
def test_a_stream_that_knows_its_state_is_not_told_of(kind):
    _, state = stop_after(loader_of(kind, 10), 2, 1)
    loader = loader_of(kind, 10)
    loader.load_state_dict(state)
    assert len(list(loader)) == 3


@pytest.mark.filterwarnings("error:The dataset .* is iterated again")
def test_nothing_is_told_at_the_edge_of_an_epoch():
    loader, other = loader_of("Numbers", 4), loader_of("Numbers", 4)
    list(loader)
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == 2


@pytest.mark.parametrize("kind", [kind.__name__ for kind in STATEFUL])
@pytest.mark.parametrize("batch_size", [3, None])
def test_after_the_last_batch_comes_the_next_epoch(kind, batch_size):
    """Also if the stream tells the state of its beginning by then."""
    loader = loader_of(kind, 6, batch_size=batch_size)
    for _ in loader:
        state = loader.state_dict()
    other = loader_of(kind, 6, batch_size=batch_size)
    other.load_state_dict(through_json(state))
    assert len(list(other)) == (6 if batch_size is None else 2)


@pytest.mark.parametrize("kind", STREAMS)
def test_a_last_batch_that_was_not_full(kind):
    loader = loader_of(kind, 5)
    for _ in loader:
        state = loader.state_dict()
    other = loader_of(kind, 5)
    other.load_state_dict(through_json(state))
    assert len(list(other)) == len(list(loader))


def test_a_state_is_a_copy_of_what_the_stream_told():
    class Appending(ItsOwnIterator):
        def __init__(self, n):
            super().__init__(n)
            self.past = []

        def __next__(self):
            self.past.append(super().__next__()[0])
            return self.past[-1]

        def state_dict(self):
            return {"given": self.given, "past": self.past}

    loader = DataLoader(Appending(4))
    states = [loader.state_dict() for _ in loader]
    pasts = [state["course"]["lanes"][0]["state"]["dataset"]["past"] for state in states]
    assert pasts == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_a_state_of_a_class_that_had_one_is_refused_by_one_that_has_none():
    _, state = stop_after(loader_of("Generated", 10), 2, 1)
    loader = loader_of("Numbers", 10)
    with pytest.raises(StateError, match="Numbers has none"):
        loader.load_state_dict(state)


# Workers


@pytest.mark.parametrize("kind", STREAMS)
def test_state_soon_after_a_resume_before_every_worker_has_given_something(kind):
    want = [batch for _, batch in run(loader_of(kind, 20, way=Way("threads", 3)), 1)]
    got, state = [], None
    for _ in want:
        with loader_of(kind, 20, way=Way("threads", 3)) as loader:
            if state is not None:
                loader.load_state_dict(state)
            got.append(plain(next(iter(loader))))
            state = through_json(loader.state_dict())
    assert got == want


def test_a_worker_that_ended_before_is_not_asked_again():
    """Worker 1 has a third of its part; the rounds go on without it."""
    three = Way("threads", 3)
    _, state = stop_after(loader_of("Generated", 30, way=three, batch_size=1), 20, 1)
    assert [lane["has_ended"] for lane in state["course"]["lanes"]] == [False, True, False]
    with loader_of("Generated", 30, way=three, batch_size=1) as loader:
        loader.load_state_dict(state)
        rest = [plain(batch)[0] for batch in loader]
    whole = [batch[0] for _, batch in run(loader_of("Generated", 30, way=three, batch_size=1), 1)]
    assert rest == whole[20:]


def test_the_streams_of_so_many_workers_are_ended_by_as_many():
    two, one = Way("threads", 2), Way("threads", 1)
    want = [batch[0] for _, batch in run(loader_of("Numbers", 20, way=two), 1)]
    given, state = stop_after(loader_of("Numbers", 20, way=two), 2, 1)
    with loader_of("Numbers", 20, way=one) as loader:
        loader.load_state_dict(state)
        assert [batch[0] for _, batch in given] + [plain(batch)[0] for batch in loader] == want
        assert [plain(batch)[0] for batch in loader] == [[2 * i, 2 * i + 1] for i in range(10)]


def test_a_loader_with_a_timeout_goes_on_with_the_stream_of_one_that_had_no_workers():
    _, state = stop_after(loader_of("Numbers", 10), 1, 1)
    with loader_of("Numbers", 10, way=Way("threads", 1), timeout=30) as loader:
        loader.load_state_dict(state)
        assert [plain(batch)[0] for batch in loader] == [[2, 3], [4, 5], [6, 7], [8, 9]]


def test_out_of_order_nothing_is_lost_and_nothing_doubled():
    two = Way("threads", 2, prefetch=3)
    want = sorted(number for _, batch in run(loader_of("Numbers", 40, way=two), 1) for number in batch[0])
    got, state = [], None
    for _ in range(30):
        with loader_of("Numbers", 40, way=two, in_order=False) as loader:
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            batch = next(iterator)
            if iterator.plan.epoch > 0:
                break
            got += plain(batch)[0]
            state = through_json(loader.state_dict())
    assert sorted(got) == want


def test_workers_draw_other_numbers_in_the_next_epoch_after_a_resume_at_the_edge():
    class Random(IterableDataset):
        def __iter__(self):
            return (random.random() for _ in range(3))

    def make():
        return DataLoader(Random(), num_workers=1, multiprocessing_context="fork")

    with own_generators(), make() as loader, make() as other:
        first = as_lists(loader)
        other.load_state_dict(through_json(loader.state_dict()))
        assert as_lists(other) != first


# Errors, and samples that are left out


class Breaking(ItsOwnIterator):
    """Raises for some numbers, and goes on."""

    bad: tuple[int, ...] = (3,)

    def __next__(self):
        number, _ = super().__next__()
        if number in self.bad:
            raise ValueError("bad")
        return number


def outcomes_of(iterator):
    told = []
    while True:
        try:
            told.append(plain(next(iterator)))
        except ValueError:
            told.append("error")
        except StopIteration:
            return told


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_batch_that_raised_was_told(forgetful):
    class Stream(Breaking):
        if forgetful:
            state_dict = load_state_dict = None

    want = outcomes_of(iter(DataLoader(Stream(8), batch_size=2)))
    assert "error" in want
    for stop in range(1, len(want)):
        loader, other = (DataLoader(Stream(8), batch_size=2) for _ in range(2))
        iterator = iter(loader)
        got = []
        for _ in range(stop):
            try:
                got.append(plain(next(iterator)))
            except ValueError:
                got.append("error")
        other.load_state_dict(through_json(loader.state_dict()))
        assert got + outcomes_of(iter(other)) == want


@pytest.mark.filterwarnings("ignore:.*left out")
def test_left_out_samples_are_counted_once():
    class Stream(Breaking):
        bad = (2, 3)

    def make():
        return DataLoader(Stream(8), batch_size=2, on_error="skip")

    whole = make()
    want = as_lists(whole)
    for stop in range(1, len(want)):
        loader, other = make(), make()
        iterator = iter(loader)
        got = [plain(next(iterator)) for _ in range(stop)]
        state = through_json(loader.state_dict())
        other.load_state_dict(state)
        assert got + as_lists(other) == want
        assert state["errors"] + len(other.errors) == len(whole.errors) == 2


# Seeking, refusals


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_seek(seed, workers):
    way = Way("threads", workers) if workers else INLINE
    want = [batch for _, batch in run(loader_of("Numbers", 20, way=way, seed=seed), 1)]
    with loader_of("Numbers", 20, way=way, seed=seed) as loader:
        loader.seek(2)
        iterator = iter(loader)
        assert plain(next(iterator)) == want[2]
        state = through_json(loader.state_dict())
    assert state["batches"] == 3
    with loader_of("Numbers", 20, way=way, seed=seed) as loader:
        loader.load_state_dict(state)
        assert [plain(batch) for batch in loader] == want[3:]


@pytest.mark.parametrize(
    ("other", "reason"),
    [({"batch_size": 3}, "batch_size = 2"), ({"drop_last": True}, "drop_last = False"), ({"seed": 1}, "seed = None")],
)
def test_other_arguments_are_refused(other, reason):
    _, state = stop_after(loader_of("Numbers", 10), 1, 1)
    with pytest.raises(StateError, match=reason):
        loader_of("Numbers", 10, **other).load_state_dict(state)


def test_damaged_states_are_refused():
    _, state = stop_after(loader_of("Numbers", 10, way=Way("threads", 2)), 2, 1)
    for name in ("lanes", "workers"):
        damaged = {**state, "course": {key: value for key, value in state["course"].items() if key != name}}
        with pytest.raises(StateError, match="damaged"):
            loader_of("Numbers", 10).load_state_dict(damaged)
    for lanes in ([], state["course"]["lanes"][:1], [{"batches": -1}] * 2, [None, None]):
        damaged = {**state, "course": {**state["course"], "lanes": lanes}}
        with pytest.raises(StateError, match="damaged"):
            loader_of("Numbers", 10).load_state_dict(damaged)


def test_the_state_of_a_map_is_refused_by_a_stream_and_the_other_way_round():
    stream = DataLoader(Numbers(10), batch_size=2)
    mapped = DataLoader(range(10), batch_size=2)
    states = [stop_after(loader, 1, 1)[1] for loader in (DataLoader(Numbers(10), batch_size=2), mapped)]
    for loader, state in ((mapped, states[0]), (stream, states[1])):
        with pytest.raises(StateError):
            loader.load_state_dict(state)


def test_states_are_small():
    for kind in STREAMS:
        _, state = stop_after(loader_of(kind, 400, way=Way("threads", 3)), 20, 1)
        assert len(json.dumps(state)) < 1000


@needs_torch
@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_datapipe(workers):
    from torch.utils.data.datapipes.iter import IterableWrapper

    way = Way("fork", workers) if workers else INLINE

    def make():
        pipe = IterableWrapper(list(range(20))).shuffle().sharding_filter()
        return DataLoader(pipe, batch_size=5, shuffle=True, **way.arguments())

    with own_generators(), make() as loader:
        iterator = iter(loader)
        got = plain(next(iterator))
        state = through_json(loader.state_dict())
        rest = [plain(batch) for batch in iterator]
    seed_generators(8)
    with make() as other:
        other.load_state_dict(state)
        assert [plain(batch) for batch in other] == rest
    assert sorted(sum(rest, got)) == list(range(20))


class Drawing(IterableDataset):
    """Goes on where its state says, with new random numbers."""

    def __init__(self, n):
        self.n = n
        self.next = 0

    def __iter__(self):
        while self.next < self.n:
            self.next += 1
            yield [random.random(), np.random.rand(), rng().random()]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def test_workers_that_go_on_by_a_state_draw_nothing_twice():
    with DataLoader(Drawing(24), batch_size=None, num_workers=1, output="numpy") as loader:
        batches = iter(loader)
        before = [value for _ in range(12) for value in plain(next(batches))]
        state = through_json(loader.state_dict())
    with DataLoader(Drawing(24), batch_size=None, num_workers=1, output="numpy") as resumed:
        resumed.load_state_dict(state)
        after = [value for batch in resumed for value in plain(batch)]
    assert len(after) == len(before) == 36
    assert not set(before) & set(after)


def test_a_dataset_that_counts_its_epochs_goes_on_after_the_last_batch():
    """Its state says with what the next epoch begins."""

    class Turning(IterableDataset):
        turn = next = 0

        def __iter__(self):
            while self.next < 9:
                number, self.next = self.next, self.next + 1
                yield (number + 5 * self.turn) % 9
            self.next, self.turn = 0, self.turn + 1

        def state_dict(self):
            return {"turn": self.turn, "next": self.next}

        def load_state_dict(self, state):
            self.turn, self.next = state["turn"], state["next"]

    def make():
        return DataLoader(Turning(), batch_size=5, collate_fn=list)

    loader = make()
    want = [batch for _ in range(2) for batch in loader]
    for at in range(1, len(want)):
        loader = make()
        batches = (batch for _ in range(2) for batch in loader)
        given, state = [next(batches) for _ in range(at)], loader.state_dict()
        resumed = make()
        resumed.load_state_dict(state)
        given += resumed
        if at < 2:
            given += resumed
        assert given == want
