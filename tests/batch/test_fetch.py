"""Fetching: keys to samples, one at a time, many at once, or from a stream."""

from __future__ import annotations

import numpy as np
import pytest

import headrace.batch.fetch as fetch_module
from headrace import DataLoader
from headrace.base.messages import IterableStart, PackedIndices, Place, PlacedKeys, Pull
from headrace.base.randomness import SampleRandomness, rng
from headrace.batch.fetch import (
    POSITION,
    STOP,
    Abandoned,
    EndOfStream,
    MapFetcher,
    NoSampleLeft,
    Watch,
)
from headrace.batch.iterable_fetch import IterableFetcher
from headrace.testing import FlakyDataset


class Recorder:
    """A dataset that answers with the keys it was asked for."""

    def __getitem__(self, key):
        return ("one", key, type(key))


class ManyRecorder(Recorder):
    def __getitems__(self, keys):
        return [("many", keys, type(keys))]


def test_single_keys_are_passed_as_they_are():
    fetcher = MapFetcher({"a": 1}, lambda sample: [sample], batched=False)
    assert fetcher.fetch("a") == [1]


def test_user_code_sees_packed_indices_as_python_integers():
    packed = PackedIndices(np.array([2, 0]))
    assert MapFetcher(Recorder(), list, batched=True).fetch(packed) == [("one", 2, int), ("one", 0, int)]
    assert MapFetcher(ManyRecorder(), list, batched=True).fetch(packed) == [("many", [2, 0], list)]


def test_keys_of_a_user_are_passed_untouched():
    keys = ("a", "b")
    assert MapFetcher(ManyRecorder(), list, batched=True).fetch(keys)[0][1] is keys
    assert MapFetcher(Recorder(), list, batched=True).fetch(keys) == [("one", "a", str), ("one", "b", str)]


def test_a_getitems_set_to_none_is_ignored():
    dataset = ManyRecorder()
    dataset.__getitems__ = None
    assert MapFetcher(dataset, list, batched=True).fetch([1]) == [("one", 1, int)]


def test_take_is_used_for_integers_and_passed_by_for_other_keys_and_empty_batches():
    fetcher = MapFetcher(Recorder(), list, batched=True, take=lambda indices: ("took", indices.tolist()))
    assert fetcher.fetch(PackedIndices(np.array([1]))) == ("took", [1])
    assert fetcher.fetch([1, 2]) == ("took", [1, 2])
    assert fetcher.fetch(["a"]) == [("one", "a", str)]
    assert fetcher.fetch([]) == []


def fetch_all(fetcher, pull):
    while True:
        try:
            yield fetcher.fetch(pull)
        except EndOfStream:
            return


@pytest.mark.parametrize(
    ("n", "drop_last", "expected"),
    [
        (5, False, [[0, 1], [2, 3], [4]]),
        (5, True, [[0, 1], [2, 3]]),
        (4, True, [[0, 1], [2, 3]]),
        (0, False, []),
    ],
)
def test_a_stream_is_cut_into_batches(n, drop_last, expected):
    fetcher = IterableFetcher(range(n), list, drop_last=drop_last)
    assert list(fetch_all(fetcher, Pull(2))) == expected
    with pytest.raises(EndOfStream):
        fetcher.fetch(Pull(2))


def test_a_stream_without_batches_gives_single_samples():
    assert list(fetch_all(IterableFetcher("ab", str.upper, drop_last=False), Pull(None))) == ["A", "B"]


def test_a_stream_is_started_once_and_read_no_further_than_needed():
    read = []

    def samples():
        for i in range(5):
            read.append(i)
            yield i

    fetcher = IterableFetcher(samples(), list, drop_last=False)
    assert read == []
    fetcher.fetch(Pull(2))
    assert read == [0, 1]


def test_the_short_last_batch_asks_an_ended_stream_no_more():
    class Once:
        ended = False

        def __iter__(self):
            return self

        def __next__(self):
            assert not self.ended
            self.ended = True
            raise StopIteration

    fetcher = IterableFetcher(Once(), list, drop_last=False)
    for _ in range(2):
        with pytest.raises(EndOfStream):
            fetcher.fetch(Pull(3))


# Watched from outside


class Follower:
    """A dataset that notes what the board says while it is asked."""

    def __init__(self, board):
        self.board = board
        self.positions = []

    def __getitem__(self, key):
        self.positions.append(self.board[POSITION])
        return key

    def __iter__(self):
        for key in range(10):
            yield self[key]


class Summing:
    """A builder that notes the number of samples it was made for."""

    only_keeps = False

    def __init__(self, n):
        self.n = n
        self.samples = []
        self.add = self.samples.append
        self.extend = self.samples.extend

    def finish(self):
        return self.n, self.samples


def test_samples_are_added_as_they_arrive(monkeypatch):
    assert MapFetcher("abc", list, batched=True, build=Summing).fetch([2, 0]) == (2, ["c", "a"])
    assert MapFetcher("abc", list, batched=True, build=Summing).fetch(iter([1])) == (1, ["b"])
    monkeypatch.setattr(fetch_module, "_STRIDE_S", 0)  # no stream is quick
    fetcher = IterableFetcher("abc", list, drop_last=False, build=Summing)
    assert list(fetch_all(fetcher, Pull(2))) == [(2, ["a", "b"]), (2, ["c"])]


def test_samples_that_come_all_at_once_need_not_be_added_one_by_one(monkeypatch):
    monkeypatch.setattr(fetch_module, "_STRIDE_S", 60)  # every stream is quick
    fetcher = IterableFetcher("abcdefgh", tuple, drop_last=False, build=Summing)
    assert list(fetch_all(fetcher, Pull(3))) == [(3, ["a", "b", "c"]), ("d", "e", "f"), ("g", "h")]


def test_quick_samples_are_fetched_in_strides_and_their_positions_told(monkeypatch):
    monkeypatch.setattr(fetch_module, "_STRIDE_S", 60)
    board = [0, 0, -1]
    dataset = Follower(board)
    fetcher = MapFetcher(dataset, list, batched=True, watch=Watch(board))
    keys = list(range(100, 120))
    for _ in range(3):
        assert fetcher.fetch(keys) == keys
    assert dataset.positions == [*range(20)] * 3
    board[STOP] = 1
    with pytest.raises(Abandoned):
        fetcher.fetch(keys)


def test_the_board_tells_which_sample_is_at_work():
    board = [0, 0, -1]
    dataset = Follower(board)
    assert MapFetcher(dataset, list, batched=True, watch=Watch(board)).fetch([7, 8, 9]) == [7, 8, 9]
    assert dataset.positions == [0, 1, 2]
    dataset.positions.clear()
    IterableFetcher(dataset, list, drop_last=False, watch=Watch(board)).fetch(Pull(9))
    # Quick samples of a stream are pulled several at a time, and then no single one is told.
    assert dataset.positions[0] == 0
    assert all(told in (position, -1) for position, told in enumerate(dataset.positions))


def test_whoever_is_told_to_stop_does_so_before_the_next_sample():
    board = [0, 0, -1]

    class Stopping(Follower):
        def __getitem__(self, key):
            if key == 1:
                board[STOP] = 1
            return super().__getitem__(key)

    dataset = Stopping(board)
    with pytest.raises(Abandoned):
        MapFetcher(dataset, list, batched=True, watch=Watch(board)).fetch([0, 1, 2, 3])
    assert dataset.positions == [0, 1]
    board[STOP] = 0
    with pytest.raises(Abandoned):
        IterableFetcher(dataset, list, drop_last=False, watch=Watch(board)).fetch(Pull(5))


def test_bad_samples_are_left_out_and_remembered():
    watch = Watch([0, 0, -1], skip_errors=True)
    fetcher = MapFetcher(FlakyDataset("abcd", bad=[1, 3]), list, batched=True, watch=watch)
    assert fetcher.fetch([0, 1, 2]) == ["a", "c"]
    assert [(key, str(error)) for key, error in watch.bad] == [(1, "sample 1 is bad")]
    watch.bad.clear()
    with pytest.raises(NoSampleLeft):
        fetcher.fetch([1, 3])
    assert [key for key, _ in watch.bad] == [1, 3]


def test_without_leave_to_skip_a_bad_sample_raises():
    fetcher = MapFetcher(FlakyDataset("abcd", bad=[1]), list, batched=True, watch=Watch([0, 0, -1]))
    with pytest.raises(ValueError, match="sample 1 is bad"):
        fetcher.fetch([0, 1, 2])


def test_an_empty_batch_is_a_batch_and_not_a_bad_one():
    watch = Watch([0, 0, -1], skip_errors=True)
    assert MapFetcher("abc", list, batched=True, watch=watch).fetch([]) == []


def test_positions_to_be_left_out_are_not_touched():
    board = [0, 0, -1]
    dataset = Follower(board)
    watch = Watch(board, skip_errors=True, leave_out=(0, 2))
    took = []
    fetcher = MapFetcher(dataset, list, batched=True, take=took.append, watch=watch)
    assert fetcher.fetch([5, 6, 7, 8]) == [6, 8]
    assert dataset.positions == [1, 3]
    assert took == []  # it would touch them all
    watch.leave_out = (0,)
    with pytest.raises(NoSampleLeft):
        MapFetcher(dataset, list, batched=False, watch=watch).fetch(5)


@pytest.mark.parametrize("way", ["take", "__getitems__"])
def test_where_a_whole_batch_fails_its_samples_are_tried_one_by_one(way):
    class Many(FlakyDataset):
        pass

    def fail(keys):
        raise OSError("all or nothing")

    if way == "__getitems__":
        Many.__getitems__ = lambda self, keys: fail(keys)
    for skips in (True, False):
        watch = Watch([0, 0, -1], skip_errors=skips)
        fetcher = MapFetcher(
            Many("abc", bad=[1]), list, batched=True, take=fail if way == "take" else None, watch=watch
        )
        if skips:
            assert fetcher.fetch([0, 1, 2]) == ["a", "c"]
            assert [key for key, _ in watch.bad] == [1]
        else:
            with pytest.raises(OSError, match="all or nothing"):
                fetcher.fetch([0, 1, 2])


def test_a_single_bad_sample_is_no_batch():
    watch = Watch([0, 0, -1], skip_errors=True)
    fetcher = MapFetcher(FlakyDataset("ab", bad=[1]), str.upper, batched=False, watch=watch)
    assert fetcher.fetch(0) == "A"
    with pytest.raises(NoSampleLeft):
        fetcher.fetch(1)
    assert [key for key, _ in watch.bad] == [1]


class Resilient:
    """A stream that raises for some of its samples, and goes on."""

    def __init__(self, n, bad):
        self.i = -1
        self.n = n
        self.bad = bad

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        if self.i == self.n:
            raise StopIteration
        if self.i in self.bad:
            raise ValueError(f"sample {self.i} is bad")
        return self.i


def test_bad_samples_of_a_stream_count_in_their_batch():
    watch = Watch([0, 0, -1], skip_errors=True)
    fetcher = IterableFetcher(Resilient(7, {1, 2, 3}), list, drop_last=False, watch=watch)
    assert fetcher.fetch(Pull(2)) == [0]
    with pytest.raises(NoSampleLeft):
        fetcher.fetch(Pull(2))
    assert fetcher.fetch(Pull(2)) == [4, 5]
    assert fetcher.fetch(Pull(2)) == [6]
    with pytest.raises(EndOfStream):
        fetcher.fetch(Pull(2))
    assert [str(error) for _, error in watch.bad] == [f"sample {i} is bad" for i in (1, 2, 3)]


def test_single_samples_of_a_stream_that_are_bad_are_no_end():
    watch = Watch([0, 0, -1], skip_errors=True)
    fetcher = IterableFetcher(Resilient(3, {1}), str, drop_last=False, watch=watch)
    assert fetcher.fetch(Pull(None)) == "0"
    with pytest.raises(NoSampleLeft):
        fetcher.fetch(Pull(None))
    watch.bad.clear()
    assert fetcher.fetch(Pull(None)) == "2"
    with pytest.raises(EndOfStream):
        fetcher.fetch(Pull(None))


def test_a_stream_without_leave_to_skip_raises_in_its_place():
    fetcher = IterableFetcher(Resilient(4, {1}), list, drop_last=False)
    with pytest.raises(ValueError, match="sample 1 is bad"):
        fetcher.fetch(Pull(2))
    assert fetcher.fetch(Pull(2)) == [2, 3]


# Datasets that are their own iterator, states, and places


class Restarting:
    """Is its own iterator, and begins anew whenever `__iter__` is called."""

    def __init__(self, n):
        self.n = n
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        self.given = 0
        return self

    def __next__(self):
        if self.given == self.n:
            raise StopIteration
        self.given += 1
        return self.given - 1

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


@pytest.mark.parametrize("count", [1, 3, 7, None])
def test_a_dataset_that_is_its_own_iterator_is_begun_once(count):
    dataset = Restarting(200)
    fetcher = IterableFetcher(dataset, lambda samples: samples, drop_last=False)
    batches = list(fetch_all(fetcher, Pull(count)))
    assert [sample for batch in batches for sample in (batch if count else [batch])] == list(range(200))
    assert dataset.begun == 1


@pytest.mark.parametrize("stop", [0, 1, 3, 5])
@pytest.mark.parametrize("forgets", [False, True])
def test_an_iteration_goes_on_in_the_middle(stop, forgets):
    def fetcher_of(start=None):
        return IterableFetcher(Restarting(10), list, drop_last=False, start=start)

    first = fetcher_of()
    given = [first.fetch(Pull(2)) for _ in range(stop)]
    state = None if forgets else first.state()
    start = IterableStart(batches=stop, size=2, state=state, since=stop if forgets else 0)
    assert given + list(fetch_all(fetcher_of(start), Pull(2))) == [[i, i + 1] for i in range(0, 10, 2)]


def test_an_iteration_that_has_ended_is_not_begun_again():
    dataset = Restarting(4)
    fetcher = IterableFetcher(dataset, list, drop_last=False, start=IterableStart(batches=2, size=2, has_ended=True))
    assert list(fetch_all(fetcher, Pull(2))) == []
    assert dataset.begun == 0


def test_the_state_tells_if_a_stream_has_come_to_its_end():
    fetcher = IterableFetcher(Restarting(3), list, drop_last=False)
    fetcher.fetch(Pull(2))
    assert fetcher.state() == {"dataset": {"given": 2}, "has_ended": False}
    fetcher.fetch(Pull(2))
    assert fetcher.state() == {"dataset": {"given": 3}, "has_ended": True}
    assert IterableFetcher("abc", list, drop_last=False).state() is None


def test_a_stream_that_raised_before_raises_no_more_when_it_is_run_forward():
    class Raising(Restarting):
        state_dict = None

        def __next__(self):
            sample = super().__next__()
            if sample == 2:
                raise ValueError("bad")
            return sample

    first = IterableFetcher(Raising(8), list, drop_last=False)
    assert first.fetch(Pull(2)) == [0, 1]
    with pytest.raises(ValueError, match="bad"):
        first.fetch(Pull(2))
    rest = list(fetch_all(first, Pull(2)))
    again = IterableFetcher(Raising(8), list, drop_last=False, start=IterableStart(batches=2, size=2, since=2))
    assert list(fetch_all(again, Pull(2))) == rest


def test_places_decide_what_is_drawn():
    class Drawing:
        def __getitem__(self, key):
            return rng().random()

    def fetcher():
        return MapFetcher(Drawing(), list, batched=True, randomness=SampleRandomness(1))

    first = fetcher().fetch(PlacedKeys([0, 1, 2], Place(0, 10, 1)))
    assert fetcher().fetch(PlacedKeys([3, 3], Place(0, 11, 1))) == first[1:]  # by place, not by key
    assert fetcher().fetch(PlacedKeys([0, 1], Place(0, 10, 2))) == first[::2]
    assert fetcher().fetch(PlacedKeys([0, 1, 2], Place(1, 10, 1))) != first


def test_places_without_a_seed_are_keys_only():
    assert MapFetcher("abc", list, batched=True).fetch(PlacedKeys([2, 0], Place(0, 0, 1))) == ["c", "a"]


class DrawingStream:
    def __iter__(self):
        return iter([rng().random() for _ in range(3)])


def seeded_stream(dataset):
    return IterableFetcher(dataset, list, drop_last=False, randomness=SampleRandomness(1, repeats=False))


def test_a_seeded_stream_is_begun_with_its_first_task_which_tells_the_epoch():
    def batches(epoch):
        return list(fetch_all(seeded_stream(DrawingStream()), PlacedKeys(Pull(2), Place(epoch, 0, 0))))

    assert batches(0) == batches(0) != batches(1)


def test_a_seeded_stream_that_cannot_begin_says_so_once():
    class Failing:
        def __iter__(self):
            raise LookupError("cannot begin")

    fetcher, task = seeded_stream(Failing()), PlacedKeys(Pull(2), Place(0, 0, 0))
    with pytest.raises(LookupError, match="cannot begin"):
        fetcher.fetch(task)
    with pytest.raises(EndOfStream):
        fetcher.fetch(task)


@pytest.mark.parametrize("sample", ["text", 3, np.zeros(10_000)], ids=["text", "number", "large array"])
@pytest.mark.parametrize("bad", [0, 1, 7])
def test_an_error_is_raised_at_its_sample_and_no_later_one_is_touched(sample, bad):
    touched = []

    class Breaking:
        def __getitem__(self, index):
            touched.append(index)
            if index == bad:
                raise KeyError(index)
            return sample

        def __len__(self):
            return 10

    with pytest.raises(KeyError):
        list(DataLoader(Breaking(), batch_size=10, output="numpy"))
    assert touched == list(range(bad + 1))
