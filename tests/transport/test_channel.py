"""The channel: whole messages, wherever they are cut, and a loader's side that never blocks."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport.channel import LoaderChannel, WorkerChannel, close_inherited_channels


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    yield LoaderChannel(ours), WorkerChannel(theirs.fileno()), theirs
    ours.close()
    theirs.close()


def framed(*messages):
    return b"".join(len(message).to_bytes(8, "little") + message for message in messages)


def test_messages_arrive_whole_and_in_order(ends):
    loader, worker, _ = ends
    sent = [b"", b"a", b"bc" * 1000, b"d"]
    for message in sent:
        loader.send(message)
    assert [bytes(worker.receive()) for _ in sent] == sent
    for message in sent:
        worker.send(message)
    assert [bytes(message) for message in loader.messages()] == sent
    assert list(loader.messages()) == []


def test_the_loaders_side_puts_messages_together_cut_at_every_byte(ends):
    loader, _, theirs = ends
    sent = [b"hello", b"", b"x" * 20]
    stream = framed(*sent)
    for cut in range(len(stream) + 1):
        received = []
        for part in (stream[:cut], stream[cut:]):
            if part:
                theirs.sendall(part)
            received += [bytes(message) for message in loader.messages()]
        assert received == sent, cut


def test_the_workers_side_puts_messages_together_cut_at_every_byte():
    sent = [b"hello", b"", b"x" * 20]
    stream = framed(*sent)
    read, write = os.pipe()
    worker = WorkerChannel(read)
    for cut in range(1, len(stream)):
        os.write(write, stream[:cut])
        rest = threading.Timer(0.001, os.write, (write, stream[cut:]))
        rest.start()
        assert [bytes(worker.receive()) for _ in sent] == sent
        rest.join()
    os.close(read)
    os.close(write)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 3000), max_size=12),
    st.lists(st.integers(1, 2000), min_size=1, max_size=20),
    st.booleans(),
)
def test_any_messages_in_any_pieces(lengths, pieces, to_the_end):
    ours, theirs = socket.socketpair()
    loader = LoaderChannel(ours)
    sent = [bytes([i % 256]) * n for i, n in enumerate(lengths)]
    stream, received = framed(*sent), []
    i = 0
    while stream:
        n = pieces[i % len(pieces)]
        i += 1
        theirs.sendall(stream[:n])
        stream = stream[n:]
        received += [bytes(message) for message in loader.messages(to_the_end=to_the_end)]
    assert received == sent
    ours.close()
    theirs.close()


def test_messages_that_were_cut_off_stay_valid_after_later_ones(ends):
    loader, worker, _ = ends
    worker.send(b"first" * 100)
    worker.send(b"second")
    kept = list(loader.messages())
    worker.send(b"third" * 1000)
    kept += list(loader.messages())
    assert [bytes(message) for message in kept] == [b"first" * 100, b"second", b"third" * 1000]


def test_one_look_is_one_look_and_to_the_end_is_all(ends):
    loader, worker, _ = ends
    sent = bytes(300_000)
    thread = threading.Thread(target=worker.send, args=(sent,))
    thread.start()
    received = []
    deadline = time.monotonic() + 20
    while not received and time.monotonic() < deadline:
        received += list(loader.messages(to_the_end=True))
    thread.join()
    assert [bytes(message) for message in received] == [sent]


def test_a_huge_message_does_not_block_the_loader(ends):
    loader, worker, _ = ends
    huge = os.urandom(2**20) * 20
    done = threading.Event()

    def send():
        loader.send(huge)
        loader.send(b"after")
        done.set()

    threading.Thread(target=send, daemon=True).start()
    assert done.wait(10), "send waits for the worker"
    assert loader.has_unsent
    received = []
    thread = threading.Thread(target=lambda: received.extend(bytes(worker.receive()) for _ in range(2)))
    thread.start()
    deadline = time.monotonic() + 20
    while loader.has_unsent and time.monotonic() < deadline:
        loader.flush()
    thread.join(20)
    assert received == [huge, b"after"]
    assert not loader.has_unsent


def test_a_worker_that_is_gone_is_no_error_for_the_loader(ends):
    loader, worker, theirs = ends
    worker.send(b"last words")
    theirs.close()
    loader.send(b"x" * 10**6)
    assert not loader.has_unsent
    assert [bytes(message) for message in loader.messages(to_the_end=True)] in ([b"last words"], [])
    assert list(loader.messages()) == []


def test_a_loader_that_is_gone_is_an_error_for_the_worker(ends):
    loader, worker, _ = ends
    loader.close()
    with pytest.raises(EOFError):
        worker.receive()
    with pytest.raises(OSError):  # noqa: PT011 (whichever the system chooses)
        worker.send(b"x")


def test_half_a_message_and_then_the_end(ends):
    loader, worker, theirs = ends
    theirs.sendall(framed(b"whole") + framed(b"half")[:9])
    assert [bytes(message) for message in loader.messages(to_the_end=True)] == [b"whole"]
    loader.send(b"x")
    loader._socket.shutdown(socket.SHUT_WR)
    assert bytes(worker.receive()) == b"x"
    with pytest.raises(EOFError):
        worker.receive()


def test_after_the_last_message_a_worker_that_waits_to_be_read_does_not(ends):
    loader, worker, _ = ends
    errors = []

    def send():
        try:
            worker.send(bytes(10**7))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    time.sleep(0.05)
    loader.send_last(b"stop")
    thread.join(10)
    assert not thread.is_alive()
    assert errors


def test_a_last_message_that_the_worker_does_not_take_closes_the_channel(ends):
    loader, _, theirs = ends
    loader.send(bytes(10**7))
    loader.send_last(b"stop")
    assert loader.fileno() == -1
    theirs.setblocking(False)
    while theirs.recv(2**20):
        pass


def test_a_forked_child_lets_go_of_the_channel(ends):
    loader, worker, theirs = ends
    pid = os.fork()
    if pid == 0:
        theirs.close()
        os._exit(0 if loader.fileno() == -1 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    loader.send(b"still here")
    assert bytes(worker.receive()) == b"still here"
    close_inherited_channels()
    assert loader.fileno() == -1
