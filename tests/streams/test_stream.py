"""Streams by themselves: what their methods give and refuse, how long they are, and iterating without a loader."""

from __future__ import annotations

import pickle

import pytest

from headrace import DataLoader, Stream, read_text
from headrace.base.errors import RecordError
from tests.streams.memory import in_memory


def known(n_rows, per_block):
    blocks = [range(i, min(i + per_block, n_rows)) for i in range(0, n_rows, per_block)]
    return Stream.from_blocks(blocks, iter, counts=list(map(len, blocks)))


def test_blocks_of_ones_own():
    stream = Stream.from_blocks(["ab", "", "cde"], list)
    assert list(stream) == ["a", "b", "c", "d", "e"]
    assert list(DataLoader(stream, batch_size=2)) == [["a", "b"], ["c", "d"], ["e"]]


def test_large_blocks_come_whole():
    assert list(Stream.from_blocks([10_000], range)) == list(range(10_000))


def test_counts_of_other_blocks_are_refused():
    with pytest.raises(ValueError, match="2 blocks, got 1"):
        Stream.from_blocks([1, 2], range, counts=[1])


@pytest.mark.parametrize(("counts", "error"), [([1, -1], ValueError), ([1, "2"], TypeError), (3, TypeError)])
def test_counts_that_are_no_numbers_of_rows_are_refused(counts, error):
    with pytest.raises(error, match=r"counts must be (at least 0|an int|an iterable)"):
        Stream.from_blocks([1, 2], range, counts=counts)


@pytest.mark.parametrize("counts", [[3, 4], [3, 2], [3, 0]])
@pytest.mark.parametrize(
    "change",
    [
        lambda stream: stream,
        lambda stream: stream.skip(1),
        lambda stream: stream.map(str),
        lambda stream: stream.shuffle(),
    ],
    ids=["read", "skip", "map", "shuffle"],
)
def test_wrong_counts_are_told_when_blocks_are_read(counts, change):
    stream = change(Stream.from_blocks(["a", "b"], lambda _: [1, 2, 3], counts=counts))
    told = rf"^Block b must have {counts[1]} rows, as counts= says, but has 3"
    with pytest.raises(RecordError, match=told):
        list(stream)
    with pytest.raises(RecordError, match=told):
        list(DataLoader(stream, batch_size=2))


def test_wrong_counts_do_no_harm_where_bad_rows_are_left_out():
    stream = Stream.from_blocks([0, 1], lambda _: [1, 2, 3], counts=[2, 4])
    assert list(DataLoader(stream, batch_size=None, on_error="skip", collate_fn=None)) == [1, 2, 3, 1, 2, 3]


def test_blocks_may_come_from_an_iterator():
    stream = Stream.from_blocks((n for n in [1, 2]), range, counts=iter([1, 2]))
    assert list(stream) == list(stream) == [0, 0, 1]


def test_what_are_no_blocks():
    with pytest.raises(TypeError, match=r"blocks must be an iterable of what `read` is called with, got 5\."):
        Stream.from_blocks(5, range)


@pytest.mark.parametrize("index", [0, -1, slice(2)])
def test_rows_have_no_index(index):
    with pytest.raises(TypeError, match=r"not by index, got (0|-1|slice\(.*\))\. Write next\(iter\(stream\)\)"):
        in_memory(6, 2)[index]


def test_a_loader_that_is_to_shuffle_says_who_does():
    with pytest.raises(ValueError, match=r"call its shuffle\(\) instead: DataLoader\(stream\.shuffle\(\)\)"):
        DataLoader(in_memory(6, 2), shuffle=True)


def test_methods_leave_the_stream_as_it_is():
    stream = in_memory(6, 2)
    for changed in (stream.map(str), stream.filter(bool), stream.take(1), stream.repeat(2), stream.as_columns()):
        assert changed is not stream
    assert list(stream) == list(range(6))


def test_each_round_of_a_shuffle_is_another():
    rows = list(known(64, 4).shuffle(blocks=4).repeat(2))
    assert sorted(rows[:64]) == sorted(rows[64:]) == list(range(64))
    assert rows[:64] != rows[64:]


def test_each_epoch_of_a_shuffle_is_another():
    stream = known(64, 4).shuffle(blocks=4)
    first = list(stream)
    stream.set_epoch(1)
    second = list(stream)
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second
    loader = DataLoader(stream, batch_size=None)
    assert [list(loader), list(loader)] == [first, second]


def test_the_seed_of_the_loader_counts_more_than_the_shuffles():
    def rows(seed, own):
        return list(DataLoader(known(64, 4).shuffle(blocks=4, seed=own), batch_size=None, seed=seed))

    assert rows(7, own=1) == rows(7, own=2) == rows(None, own=7)
    assert rows(None, own=1) != rows(None, own=2)


@pytest.mark.parametrize("stream", [known(10, 3), known(10, 3).map(str), known(5, 3).shuffle(blocks=2).repeat(2)])
def test_lengths_that_are_known(stream):
    assert len(stream) == stream.count() == len(list(stream)) == 10
    assert len(DataLoader(stream, batch_size=4)) == 3
    assert len(DataLoader(stream, batch_size=4, drop_last=True)) == 2


@pytest.mark.parametrize("stream", [in_memory(10, 3), known(10, 3).take(7), known(10, 3).filter(bool)])
def test_lengths_that_are_not(stream):
    with pytest.raises(TypeError, match="count"):
        len(stream)
    assert stream.count() == len(list(stream))


def test_packing():
    rows = list(Stream.from_blocks([0], lambda _: ["abc", "defg", "h"]).pack(3))
    assert rows == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]


@pytest.mark.parametrize(
    ("method", "argument", "text"),
    [
        ("shuffle", 0, "window must be at least 1, got 0"),
        ("repeat", 0, "times must be at least 1, got 0"),
        ("pack", 0, "length must be at least 1, got 0"),
    ],
)
def test_numbers_that_are_not_positive_are_refused(method, argument, text):
    with pytest.raises(ValueError, match=text):
        getattr(in_memory(4, 2), method)(argument)


@pytest.mark.parametrize("method", ["shuffle", "repeat", "take", "skip"])
def test_what_is_no_number_is_refused(method):
    with pytest.raises(TypeError, match="must be an int, got 'a'"):
        getattr(in_memory(4, 2), method)("a")


@pytest.mark.parametrize("method", ["take", "skip", "set_epoch"])
def test_none_is_no_number(method):
    with pytest.raises(TypeError, match="must be an int, got None"):
        getattr(in_memory(4, 2), method)(None)


@pytest.mark.parametrize("method", ["take", "skip", "set_epoch"])
def test_negative_numbers_are_refused(method):
    with pytest.raises(ValueError, match="must be at least 0, got -1"):
        getattr(in_memory(4, 2), method)(-1)


def test_batches_of_no_rows_are_refused():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        in_memory(4, 2).map_batches(dict, 0)


@pytest.mark.parametrize("method", ["map", "filter", "flat_map", "map_batches"])
def test_what_is_no_function_is_refused(method):
    with pytest.raises(TypeError, match="A function must be given, got 3"):
        getattr(in_memory(4, 2), method)(3)


@pytest.mark.parametrize("change", [lambda stream: stream.map(str), lambda stream: stream.take(1)])
def test_a_shuffle_comes_first(change):
    with pytest.raises(ValueError, match="must come before"):
        change(in_memory(4, 2)).shuffle()


def test_the_loaders_own_shuffle_is_refused():
    with pytest.raises(ValueError, match="shuffle"):
        DataLoader(in_memory(4, 2), shuffle=True)


def test_what_it_is_made_of_is_shown():
    assert (
        repr(in_memory(4, 2).shuffle(blocks=3).map(str).filter(bool))
        == "Stream(Memory).shuffle(blocks=3).map(str).filter(bool)"
    )


def test_streams_can_be_sent(tmp_path):
    (tmp_path / "a").write_text("x\ny\n")
    stream = read_text(tmp_path).shuffle(blocks=2).map(str.upper)
    assert list(pickle.loads(pickle.dumps(stream))) == list(stream)


def test_an_empty_stream_is_no_batch():
    assert list(DataLoader(Stream.from_blocks([], iter), batch_size=2)) == []
    assert list(DataLoader(in_memory(4, 2).filter(lambda row: False), batch_size=2)) == []
