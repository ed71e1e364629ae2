"""The ring in shared memory: every message comes out as it went in, and none is written over before it was taken."""

from __future__ import annotations

import socket
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport.channel import LoaderChannel, WorkerChannel
from headrace.transport.ring import RingReader, RingWriter


def make_ring(size):
    memory, taken = memoryview(bytearray(size)), memoryview(array("q", [0]))
    return RingWriter(memory, taken), RingReader(memory, taken)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.integers(1, 40), st.none()), max_size=80), st.integers(1, 64))
def test_messages_come_out_as_they_went_in(steps, size):
    """Numbers are lengths of messages to put, None takes one."""
    writer, reader = make_ring(size)
    waiting = []
    for number, step in enumerate(steps):
        if step is None:
            if waiting:
                message, start = waiting.pop(0)
                assert reader.take(start, len(message)) == message
            continue
        message = bytes([number % 256]) * step
        start = writer.put([message[:3], message[3:]], step)
        if start is None:
            assert waiting or step > size, "an empty ring has room for all that fits into it"
        else:
            waiting.append((message, start))
    for message, start in waiting:
        assert reader.take(start, len(message)) == message


def test_an_empty_ring_begins_where_the_cache_is_warm():
    writer, reader = make_ring(100)
    for _ in range(5):
        assert writer.put([b"message"], 7) == 0
        reader.take(0, 7)


def test_a_full_ring_has_no_room_until_something_is_taken():
    writer, reader = make_ring(100)
    first, second = writer.put([bytes(40)], 40), writer.put([bytes(60)], 60)
    assert (first, second) == (0, 40)
    assert writer.put([b"x"], 1) is None
    reader.take(first, 40)
    assert writer.put([bytes(39)], 39) == 0
    assert writer.put([b"x"], 1) is None, "else a full ring would look like an empty one"


@pytest.fixture
def ends():
    writer, reader = make_ring(3000)
    ours, theirs = socket.socketpair()
    yield LoaderChannel(ours, reader), WorkerChannel(theirs.fileno(), writer)
    ours.close()
    theirs.close()


def test_long_messages_pass_through_the_ring_and_keep_their_order(ends):
    loader, worker = ends
    sent = [b"a" * 2000, b"short", b"b" * 900, b"c" * 2500, b"d" * 600, b""]  # the third and fourth do not fit
    for message in sent:
        worker.send(message[:1], memoryview(message[1:]))
    worker.send(b"last")
    assert [bytes(message) for message in loader.messages(to_the_end=True)] == [*sent, b"last"]


def test_messages_stay_as_they_are_while_the_ring_is_used_again(ends):
    loader, worker = ends
    kept = []
    for i in range(20):
        worker.send(bytes([i]) * 2000)
        kept += loader.messages()
    assert [bytes(message) for message in kept] == [bytes([i]) * 2000 for i in range(20)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=30))
def test_any_messages_in_any_mixture(messages):
    """Lengths, and whether the loader looks after that."""
    writer, reader = make_ring(4096)
    ours, theirs = socket.socketpair()
    loader, worker = LoaderChannel(ours, reader), WorkerChannel(theirs.fileno(), writer)
    sent, received = [], []
    for number, (length, looks) in enumerate(messages):
        sent.append(bytes([number % 256]) * length)
        worker.send(sent[-1])
        if looks:
            received += [bytes(message) for message in loader.messages(to_the_end=True)]
    worker.send(b"end")
    received += [bytes(message) for message in loader.messages(to_the_end=True)]
    assert received == [*sent, b"end"]
    ours.close()
    theirs.close()
