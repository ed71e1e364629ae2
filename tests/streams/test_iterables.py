"""Any iterable as a stream: each row once and in order, whatever the workers and ranks (M3.5)."""

from __future__ import annotations

import itertools
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, IterableDataset, Stream
from headrace.sources.source import Block
from headrace.streams.user_sources import HandedBlock

WORKERS = [("processes", 0), ("threads", 1), ("threads", 2)]
SHARDS = ["stride", "dispatch"]


class Counting(IterableDataset):
    """The numbers below n; it does not ask which worker it is in."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        yield from range(self.n)


class Stateful:
    """The numbers below n, by iterators that know where they are, and how far they went by themselves."""

    def __init__(self, n):
        self.n = n
        self.steps = 0

    def __iter__(self):
        return StatefulIterator(self)


class StatefulIterator:
    def __init__(self, dataset):
        self._dataset = dataset
        self._place = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self._place == self._dataset.n:
            raise StopIteration
        self._dataset.steps += 1
        self._place += 1
        return self._place - 1

    def state_dict(self):
        return {"place": self._place}

    def load_state_dict(self, state):
        self._place = state["place"]


def tripled(n):
    return 3 * n


@settings(deadline=None, max_examples=50)
@given(
    n=st.integers(0, 40),
    block_rows=st.integers(1, 9),
    shard=st.sampled_from(SHARDS),
    size=st.integers(1, 7),
    window=st.none() | st.integers(1, 3),
    limits=st.tuples(st.integers(0, 9), st.none() | st.integers(0, 30)),
    first=st.sampled_from(WORKERS),
    then=st.sampled_from(WORKERS),
    at=st.integers(0, 50),
)
def test_rows_come_once_from_any_batch_on(n, block_rows, shard, size, window, limits, first, then, at):
    stream = Stream.from_iterable(lambda: iter(range(n)), shard=shard, block_rows=block_rows)
    rows = list(range(n))
    if window is not None:
        stream = stream.shuffle(blocks=window)
    skip, take = limits
    stream = stream.map(tripled).skip(skip)
    rows = [tripled(row) for row in rows][skip:]
    if take is not None:
        stream, rows = stream.take(take), rows[:take]

    def make(workers):
        engine, n_workers = workers
        return DataLoader(stream, size, collate_fn=list, engine=engine, num_workers=n_workers)

    with make(first) as loader:
        seen = [(batch, json.dumps(loader.state_dict())) for batch in loader]
    given_rows = [row for batch, _ in seen for row in batch]
    assert len(given_rows) == len(rows)
    if window is None:
        assert given_rows == rows == list(stream)
    else:
        assert len(set(given_rows)) == len(rows)
    if at < len(seen) - 1:
        with make(then) as resumed:
            resumed.load_state_dict(json.loads(seen[at][1]))
            assert list(resumed) == [batch for batch, _ in seen[at + 1 :]]


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_does_not_share_is_exact(shard, workers):
    """M3.5: without this, every batch would come once from each worker."""
    stream = Stream.from_iterable(Counting(16), shard=shard, block_rows=3)
    with DataLoader(stream, 4, num_workers=workers, collate_fn=list) as loader:
        assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("even", ["drop", "pad", "repeat", "allow"])
@pytest.mark.parametrize("n", [10, 101])
def test_ranks_share_it(shard, even, n):
    stream = Stream.from_iterable(Counting(n), shard=shard, block_rows=4)
    parts = [list(DataLoader(stream, 3, shard=(rank, 2), even=even, collate_fn=list)) for rank in range(2)]
    rows = [row for part in parts for batch in part for row in batch]
    if even in ("pad", "repeat"):
        assert set(rows) == set(range(n))
    else:
        assert len(rows) == len(set(rows)) >= n - 4
    if even == "allow":
        assert sorted(rows) == list(range(n))
    else:
        assert len({len(part) for part in parts}) == 1


def test_dispatch_reads_once_and_transforms_in_the_workers():
    reads = []

    def rows():
        for i in range(20):
            reads.append(i)
            yield i

    stream = Stream.from_iterable(rows, shard="dispatch", block_rows=4).map(tripled)
    with DataLoader(stream, 5, num_workers=2, collate_fn=list) as loader:
        assert [row for batch in loader for row in batch] == [tripled(i) for i in range(20)]
    assert reads == list(range(20))


def test_stride_goes_through_it_once_per_worker():
    reads = []

    def rows():
        for i in range(20):
            reads.append(i)
            yield i

    list(DataLoader(Stream.from_iterable(rows, block_rows=3), 4))
    assert reads == list(range(20))


def test_dispatch_goes_on_by_the_state_of_the_iterator():
    def make(dataset):
        return DataLoader(Stream.from_iterable(dataset, shard="dispatch", block_rows=5), 4, collate_fn=list)

    first = make(Stateful(100))
    batches = iter(first)
    for _ in range(20):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    dataset = Stateful(100)
    resumed = make(dataset)
    resumed.load_state_dict(state)
    assert list(resumed) == list(batches)
    assert dataset.steps <= 25


def test_endless_iterables():
    for shard in SHARDS:
        stream = Stream.from_iterable(itertools.count, shard=shard, block_rows=3).filter(lambda n: n % 2)
        loader = DataLoader(stream, 3, collate_fn=list)
        assert list(itertools.islice(loader, 2)) == [[1, 3, 5], [7, 9, 11]]
        loader.close()
        assert list(stream.take(4)) == [1, 3, 5, 7]


def test_repeated_iterables():
    assert list(Stream.from_iterable(lambda: iter("abc"), block_rows=2).repeat(2)) == list("abcabc")
    endless = DataLoader(Stream.from_iterable(["a", "b", "c"]).repeat(), 2, num_workers=1, engine="threads")
    with endless:
        assert list(itertools.islice(endless, 3)) == [["a", "b"], ["c", "a"], ["b", "c"]]


def test_a_sequence_tells_its_length_and_others_are_counted():
    assert len(Stream.from_iterable([1, 2, 3])) == 3
    assert len(DataLoader(Stream.from_iterable(range(10)), 4)) == 3
    assert Stream.from_iterable(Counting(5)).count() == 5


def test_an_error_of_the_iterable_is_raised():
    def rows():
        yield 1
        raise OSError("the store is away")

    for shard in SHARDS:
        with pytest.raises(OSError, match="away"):
            list(DataLoader(Stream.from_iterable(rows, shard=shard), 2))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"rows": 3}, TypeError, "iterable, or a function"),
        ({"rows": iter([1])}, TypeError, "only once"),
        ({"rows": (i for i in range(3))}, TypeError, "only once"),
        ({"rows": [1], "shard": "both"}, ValueError, "'stride' or 'dispatch', got 'both'"),
        ({"rows": [1], "block_rows": 0}, ValueError, "at least 1, got 0"),
    ],
)
def test_what_can_not_be_a_stream_is_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        Stream.from_iterable(**arguments)


@pytest.mark.parametrize("block", [Block("file", 1, None, n_bytes=5), HandedBlock("rows", 0, 2, 2, handed=("a", "b"))])
def test_blocks_are_sent_whole(block):
    sent = pickle.loads(pickle.dumps(block))
    assert (type(sent), repr(sent)) == (type(block), repr(block))
