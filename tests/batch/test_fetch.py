"""Fetching: keys to samples, one at a time, many at once, or from a stream."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.messages import PackedIndices, Pull
from headrace.batch.fetch import EndOfStream, IterableFetcher, MapFetcher


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
