"""Lists of strings and bytes arrive as they were sent, whatever is in them and around them."""

from __future__ import annotations

import os
import pickle
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.later_column import Columns, LaterColumn, made
from headrace.transport.lists import pack_lists
from headrace.transport.pickling import BATCH, encode, read_header, seal
from tests.transport.test_arena import Pair


def through(batch):
    """The batch after packing, pickling and unpickling."""
    return pickle.loads(pickle.dumps(pack_lists(batch, np.empty), 5))


def through_arena(batch, pair):
    message = memoryview(b"".join(encode(7, BATCH, pack_lists(batch, pair.worker.allocate), pair.worker)))
    return seal(read_header(message), message, pair.loader)()


@contextmanager
def a_pair():
    pair = Pair()
    yield pair
    os.close(pair.fd)
    vars(pair).clear()


def is_packed(batch):
    return pack_lists(batch, np.empty) is not batch


strings = st.text(st.characters(), max_size=50)  # surrogates included
items = st.lists(st.one_of(strings, st.binary(max_size=2000)), min_size=14, max_size=40)
fields = st.one_of(
    st.lists(strings, max_size=40), st.lists(st.binary(max_size=2000), max_size=40), items, st.integers(), strings
)
named = st.dictionaries(strings, fields, max_size=3)
batches = st.one_of(fields, st.lists(fields), named, st.tuples(fields, fields), st.lists(named, max_size=4))


@settings(deadline=None, max_examples=200)
@given(batches)
def test_any_batch_arrives_equal(batch):
    before = pickle.dumps(batch)
    assert through(batch) == batch
    assert type(through(batch)) is type(batch)
    assert pickle.dumps(batch) == before


@settings(deadline=None, max_examples=30)
@given(batches)
def test_any_batch_arrives_equal_through_shared_memory(batch):
    with a_pair() as pair:
        assert through_arena(batch, pair) == batch


@pytest.mark.parametrize("length", [0, 3, 511, 512, 5000])
@pytest.mark.parametrize("kind", [str, bytes])
def test_lists_of_strings_and_bytes_are_packed(kind, length):
    batch = ["x" * length if kind is str else bytes(length) for _ in range(20)]
    assert is_packed(batch)
    assert is_packed({"a": 1, "b": batch})
    assert is_packed((1, batch))
    assert is_packed([1, batch])
    assert is_packed([{"a": batch}, {"a": batch}])


def test_long_bytes_go_straight_to_shared_memory():
    with a_pair() as pair:
        batch = [bytes([i]) * (2000 + i) for i in range(256)]
        message = encode(7, BATCH, pack_lists(batch, pair.worker.allocate), pair.worker)
        assert len(b"".join(message)) < 4000
        assert through_arena(batch, pair) == batch


class Name(str):
    """A subclass, which must stay one."""


@pytest.mark.parametrize(
    "batch",
    [
        ["a"] * 20 + [bytearray(b"b")],
        ["a"] * 20 + [np.zeros(3)],
        [b"a"] * 20 + [memoryview(b"b").tobytes(), bytearray(5)],
        [Name("a")] * 20,
        ["a"] * 20 + [Name("a")],
        ["a"] * 20 + [b"a"],
        ["a"] * 20 + ["", bytearray(b"b")],
        ["a"] * 20 + ["", Name("a")],
        ["a"] * 3,
        [["a"], [b"a"]],
        [["a"], ["b", Name("a")]],
        [["a"], {"b": bytearray(b"c")}],
        [["a"], np.array(["b"])],
        [1, 2, 3] * 20,
        [],
        {},
    ],
    ids=repr,
)
def test_other_lists_are_left_alone(batch):
    assert not is_packed(batch)


def test_a_string_that_comes_often_is_sent_once():
    text = "x" * 10**5
    with a_pair() as pair:
        message = encode(7, BATCH, pack_lists([text] * 100, pair.worker.allocate), pair.worker)
        assert sum(len(part) for part in message) < 2 * 10**5
        assert through_arena([text] * 100, pair) == [text] * 100


class Fields(Columns):
    """Columns by name."""

    def __init__(self, **columns):
        self.columns = columns

    def packed(self, pack):
        return Fields(**{name: pack(column) for name, column in self.columns.items()})


@pytest.mark.parametrize(
    "column",
    [[f"word {i}" for i in range(40)], [bytes(1000)] * 40, [b"x"] * 40, ["x", None] * 20, np.arange(3)],
    ids=str,
)
def test_columns_are_unpacked_when_they_are_wanted(column):
    before = list(column)
    sent = through(Fields(column=column)).columns["column"]
    assert len(sent) == len(before)
    assert list(made(sent[2:30])) == before[2:30]
    assert list(made(sent)) == before
    is_packed = isinstance(column, list) and None not in column
    assert isinstance(sent, LaterColumn) == is_packed
