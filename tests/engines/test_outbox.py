"""What leaves a worker process arrives as it was, alone or several batches in one message."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, IterableDataset
from headrace.base.messages import Begun, Exhausted, Failed, Finished, Span, Task, decoded
from headrace.batch.fetch import GATHERS
from headrace.engines.inbox import take_apart
from headrace.engines.outbox import Outbox, Report
from headrace.transport.channel import LoaderChannel, WorkerChannel
from headrace.transport.shared_memory import LoaderArena, WorkerArena, create_segment


class Pair:
    """An outbox, and the loader's side of it."""

    def __init__(self, **options):
        fd, size = create_segment(64)
        self.ours, self.theirs = socket.socketpair()
        arena = WorkerArena(fd, size)
        self.loader_arena = LoaderArena(fd, size, size)
        os.close(fd)
        self.loader = LoaderChannel(self.ours, self.loader_arena.ring)
        options = {"worker": 0, "skip_errors": False, "keeps_states": False, "where": str, **options}
        self.outbox = Outbox(arena, WorkerChannel(self.theirs.fileno(), arena.ring), **options)
        self.loader_arena.board[GATHERS] = 1

    def send(self, task, outcome, *, may_wait=True):
        self.outbox.send_outcome(task, outcome, may_wait=may_wait)

    def arrived(self):
        return [take_apart(message, self.loader_arena) for message in self.loader.messages(to_the_end=True)]

    def close(self):
        sender = self.outbox._sender
        if sender is not None:
            sender.join()
        self.ours.close()
        self.theirs.close()


def finished_of(arrived):
    return [decoded(finished) for part in arrived if isinstance(part, list) for finished in part]


def test_batches_come_together_while_there_is_more_to_do():
    pair = Pair()
    batches = [[f"line {n} {i}" for i in range(20)] for n in range(20)]
    for number, batch in enumerate(batches):
        pair.send(Task(number, None), Finished(number, batch))
    pair.outbox.begin(Begun(1), None)
    arrived = pair.arrived()
    assert max(len(part) for part in arrived if isinstance(part, list)) > 1
    found = finished_of(arrived)
    assert [(finished.number, finished.batch) for finished in found] == list(enumerate(batches))[: len(found)]
    assert isinstance(arrived[-1], Report)
    pair.close()


def test_whoever_has_nothing_more_to_do_keeps_nothing():
    pair = Pair()
    for number in range(5):
        pair.send(Task(number, None), Finished(number, ["text"] * 20), may_wait=False)
        assert [finished.number for finished in finished_of(pair.arrived())] == [number]
    pair.close()


def test_what_is_held_is_sent_though_the_next_task_takes_long():
    pair = Pair()
    for number in range(3):
        pair.send(Task(number, None), Finished(number, ["text"] * 20))
    pair.outbox._sender.join()
    assert [finished.number for finished in finished_of(pair.arrived())] == [0, 1, 2]
    pair.close()


def test_the_memory_of_a_batch_may_be_used_again_at_once():
    pair = Pair()
    array, large, strings = np.zeros(10), np.zeros(50_000), [""] * 20
    for number in range(8):
        array[:], large[:], strings[:] = number, number, [str(number)] * 20
        pair.send(Task(number, None), Finished(number, (array, strings, large[: 5000 * number])))
    pair.outbox.begin(Begun(1), None)
    found = finished_of(pair.arrived())
    assert [finished.number for finished in found] == [*range(8)]
    for number, (_, (small, texts, long), *_) in enumerate(found):
        np.testing.assert_array_equal(small, np.full(10, number))
        np.testing.assert_array_equal(long, np.full(5000 * number, number))
        assert texts == [str(number)] * 20
    pair.close()


@pytest.mark.parametrize(
    "outcome",
    [
        Finished(9, "timed", span=Span(1, 3, 3, 4, (("fetch", 2),))),
        Finished(9, "of a stream that knows its state", state={"has_ended": False}),
        Finished(9, "one of the first", fingerprint=7),
        Failed(9, ValueError("wrong")),
        Exhausted(9),
    ],
)
def test_what_is_kept_is_sent_before_anything_else(outcome):
    pair = Pair()
    pair.send(Task(0, None), Finished(0, [1]))
    for number in (1, 2):
        pair.send(Task(number, None), Finished(number, [number]))
    pair.send(Task(9, None), outcome)
    *before, last = pair.arrived()
    assert [finished.number for finished in finished_of(before)] == [0, 1, 2]
    told = decoded(last[0]) if isinstance(last, list) else last.message
    assert told.number == 9
    pair.close()


def test_a_batch_that_cannot_be_sent_fails_alone():
    pair = Pair()
    batches = [[0], [1], [threading.Lock()], [3], [4], [5], [6], [7], [8]]
    for number, batch in enumerate(batches):
        pair.send(Task(number, None), Finished(number, batch))
    pair.send(Task(9, None), Exhausted(9))
    arrived = pair.arrived()
    assert [finished.number for finished in finished_of(arrived)] == [0, 1, 3, 4, 5, 6, 7, 8]
    assert [part.message.number for part in arrived if isinstance(part, Report)] == [2, 9]
    pair.close()


batches = st.one_of(
    st.lists(st.text(max_size=40), min_size=16, max_size=30),
    st.lists(st.binary(max_size=1000), min_size=16, max_size=20),
    st.integers(1, 20_000).map(np.arange),
    st.dictionaries(st.sampled_from("abc"), st.lists(st.text(max_size=9), min_size=16, max_size=20), max_size=3),
    st.none(),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(batches, max_size=40))
def test_any_batches_arrive_once_and_in_their_order(sent):
    pair = Pair()
    kept = []
    for number, batch in enumerate(sent):
        pair.send(Task(number, None), Finished(number, batch))
        kept += finished_of(pair.arrived())
    pair.send(Task(len(sent), None), Exhausted(len(sent)))
    kept += finished_of(pair.arrived())
    assert [finished.number for finished in kept] == list(range(len(sent)))
    for finished, batch in zip(kept, sent, strict=True):
        np.testing.assert_equal(finished.batch, batch)
        assert type(finished.batch) is type(batch)
    pair.close()


class Strings(IterableDataset):
    def __iter__(self):
        for i in range(60_000):
            yield f"string {i}"


def refuse_some(samples):
    number = int(samples[0].split()[1]) // 20
    return threading.Lock() if number % 700 == 650 else samples


def test_quick_batches_of_a_loader_of_which_some_cannot_be_sent():
    loader = DataLoader(Strings(), batch_size=20, num_workers=1, collate_fn=refuse_some)
    iterator, got, failed = iter(loader), [], []
    for number in range(3000):
        try:
            got += next(iterator)
        except TypeError:  # it cannot be sent
            failed.append(number)
    assert next(iterator, None) is None
    assert failed == [650, 1350, 2050, 2750]
    refused = {i for number in failed for i in range(20 * number, 20 * number + 20)}
    assert got == [f"string {i}" for i in range(60_000) if i not in refused]


class Waits(IterableDataset):
    """Its last sample comes when the loop has got all the others."""

    def __init__(self):
        self.n_seen = multiprocessing.get_context("fork").Value("q", 0)

    def __iter__(self):
        yield from range(20_005)
        while self.n_seen.value < 20_005:
            time.sleep(0.001)
        yield -1


def test_a_stream_may_wait_for_what_the_loop_makes_of_its_batches():
    dataset = Waits()
    loader = DataLoader(dataset, batch_size=1, num_workers=1, multiprocessing_context="fork", timeout=20)
    for seen, _ in enumerate(loader, 1):
        dataset.n_seen.value = seen
    assert seen == 20_006


class Reuses(IterableDataset):
    def __iter__(self):
        batch = np.zeros(4, np.int64)
        for i in range(20_000):
            batch[:] = i
            yield batch


def test_a_stream_may_yield_the_same_array_again_and_again():
    loader = DataLoader(Reuses(), batch_size=None, num_workers=1, output="numpy")
    for i, batch in enumerate(loader):
        assert batch.tolist() == [i] * 4
    assert i == 19_999
