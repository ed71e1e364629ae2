"""An iterator that runs in a thread: nothing is lost, doubled, kept or left running."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.endings import await_dropped
from headrace.deliver.ahead import Ahead


class Batch:
    """Something that can be referred to weakly."""

    def __init__(self, number: int = 0) -> None:
        self.number = number


class Scripted:
    """A source that returns or raises what it is given, waits while it has nothing, and notes what it was asked."""

    def __init__(self, *script: Any, ends: bool = True) -> None:
        self.script: SimpleQueue[Any] = SimpleQueue()
        self.asked = 0
        self.closed = 0
        self.waiting = threading.Event()
        for step in script:
            self.script.put(step)
        if ends:
            self.script.put(StopIteration())

    def __next__(self) -> Any:
        self.asked += 1
        if self.script.empty():
            self.waiting.set()
        step = self.script.get()
        if isinstance(step, BaseException):
            raise step
        return step

    def close(self) -> None:
        self.closed += 1
        self.script.put(RuntimeError("closed"))


def same(batch: Any) -> Any:
    return batch


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def drain(ahead: Ahead) -> list[Any]:
    """All that comes out, exceptions as they are."""
    results: list[Any] = []
    while True:
        try:
            results.append(next(ahead))
        except StopIteration:
            return results
        except BaseException as error:  # noqa: BLE001 - to be compared
            results.append(error)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-deliver"]


ERRORS = st.builds(
    lambda kind, text: kind(text), st.sampled_from([ValueError, KeyError, OSError, KeyboardInterrupt]), st.text()
)


@given(script=st.lists(st.integers() | ERRORS, max_size=12), depth=st.integers(1, 4), bad=st.sets(st.integers()))
def test_every_batch_and_every_error_comes_out_once_and_in_order(script, depth, bad):
    failures = {}

    def double(number):
        if number in bad:
            failures[number] = ValueError(number)
            raise failures[number]
        return 2 * number

    ahead = Ahead(Scripted(*script), double, depth=depth)
    results = drain(ahead)
    ahead.close()
    assert len(results) == len(script)
    for step, result in zip(script, results, strict=True):
        if isinstance(step, BaseException):
            assert result is step
        elif step in bad:
            assert isinstance(result, ValueError)
            assert result.args == (step,)
        else:
            assert result == 2 * step


def test_the_function_runs_in_the_named_thread_after_begin():
    begun = []
    ahead = Ahead(Scripted(1), lambda _: (*begun, threading.current_thread()), begin=lambda: begun.append("begun"))
    ((first, thread),) = ahead
    assert first == "begun"
    assert thread is not threading.main_thread()
    assert thread.name == "headrace-deliver"
    assert thread.daemon


def test_what_begin_raises_is_the_only_result():
    source = Scripted(1)

    def begin():
        raise OSError("no such device")

    ahead = Ahead(source, same, begin=begin)
    with pytest.raises(OSError, match="no such device"):
        next(ahead)
    assert list(ahead) == []
    assert source.asked == 0


def test_the_end_stays_the_end():
    ahead = Ahead(Scripted(), same)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(ahead)


def test_stop_iteration_of_the_function_is_no_end():
    def stop_at_one(number):
        if number == 1:
            raise StopIteration
        return number

    first, second, third = drain(Ahead(Scripted(0, 1, 2), stop_at_one))
    assert (first, third) == (0, 2)
    assert isinstance(second, RuntimeError)
    assert isinstance(second.__cause__, StopIteration)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_thread_runs_ahead_by_depth_and_no_more(depth):
    source = Scripted(*range(20))
    ahead = Ahead(source, same, depth=depth)
    for taken in range(3):
        wait_until(lambda: source.asked == depth + taken)  # noqa: B023
        time.sleep(0.01)
        assert source.asked == depth + taken
        assert next(ahead) == taken
    ahead.close()


def test_depth_must_be_at_least_one():
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Ahead(Scripted(), same, depth=0)


def test_a_batch_is_gone_when_the_consumer_drops_it():
    source = Scripted(ends=False)
    ahead = Ahead(source, lambda batch: [batch])
    gc.disable()
    try:
        for _ in range(20):
            batch = Batch()
            alive = weakref.ref(batch)
            source.script.put(batch)
            del batch
            result = next(ahead)
            assert alive() is result[0]
            del result
            wait_until(lambda: alive() is None)  # noqa: B023
    finally:
        gc.enable()
        ahead.close()


def test_an_error_keeps_no_batch_alive_longer_than_itself():
    def fail(batch):
        raise ValueError("cannot be prepared")

    source = Scripted(ends=False)
    ahead = Ahead(source, fail)
    gc.disable()
    try:
        batch = Batch()
        alive = weakref.ref(batch)
        source.script.put(batch)
        del batch
        with pytest.raises(ValueError, match="cannot be prepared") as caught:
            next(ahead)
        del caught
        wait_until(lambda: alive() is None)
    finally:
        gc.enable()
        ahead.close()


def test_an_interrupt_while_waiting_loses_nothing():
    def interrupt(*_):
        raise KeyboardInterrupt

    source = Scripted(ends=False)
    ahead = Ahead(source, same)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(KeyboardInterrupt):
                next(ahead)
            source.script.put(number)
            source.script.put(-number)
            assert (next(ahead), next(ahead)) == (number, -number)
    finally:
        signal.signal(signal.SIGALRM, before)
        ahead.close()


def test_close_ends_a_thread_that_waits_for_its_source():
    source = Scripted(ends=False)
    ahead = Ahead(source, same)
    assert source.waiting.wait(10)
    ahead.close()
    assert threads() == []
    assert source.closed
    assert list(ahead) == []
    ahead.close()


def test_close_ends_a_thread_that_waits_for_room_and_drops_its_batches():
    batches = [Batch(number) for number in range(5)]
    alive = [weakref.ref(batch) for batch in batches]
    source = Scripted(*batches)
    ahead = Ahead(source, same)
    del batches
    wait_until(lambda: source.asked == 2)
    assert next(ahead).number == 0
    ahead.close()
    assert threads() == []
    del source.script
    assert [ref() for ref in alive] == [None] * 5
    assert list(ahead) == []


def test_close_wakes_a_consumer_in_another_thread():
    source = Scripted(ends=False)
    ahead = Ahead(source, same)
    results: list[Any] = []
    consumer = threading.Thread(target=lambda: results.append(drain(ahead)))
    consumer.start()
    assert source.waiting.wait(10)
    ahead.close()
    consumer.join(10)
    assert not consumer.is_alive()
    assert all(str(result) == "closed" for result in results[0])


def test_close_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr("headrace.base.endings._GRACE_S", 0.01)
    entered, leave = threading.Event(), threading.Event()
    alive = []

    def hang(batch):
        alive.append(weakref.ref(batch))
        entered.set()
        leave.wait(10)
        return batch

    ahead = Ahead(Scripted(Batch()), hang)
    assert entered.wait(10)
    ahead.close()
    assert list(ahead) == []
    (thread,) = threads()
    leave.set()
    thread.join(10)
    assert list(ahead) == []
    assert alive[0]() is None


def test_an_error_of_the_sources_close_is_raised_after_the_thread_has_ended():
    class Broken(Scripted):
        def close(self):
            super().close()
            raise OSError("cannot be closed")

    ahead = Ahead(Broken(1, 2, 3), same)
    wait_until(lambda: len(ahead._line.outcomes) == 2)
    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        with pytest.raises(OSError, match="cannot be closed"):
            ahead.close()
    finally:
        threading.excepthook = hook
    assert threads() == []


@pytest.mark.parametrize("in_a_circle", [False, True])
def test_garbage_collection_ends_the_thread(in_a_circle):
    source = Scripted(ends=False)
    ahead = Ahead(source, same)
    assert source.waiting.wait(10)
    (thread,) = threads()
    if in_a_circle:
        ahead.itself = ahead
    del ahead
    gc.collect()
    await_dropped()
    assert not thread.is_alive()
    assert source.closed


def test_garbage_collected_in_its_own_thread():
    source = Scripted(ends=False)
    holder = [Ahead(source, lambda batch: holder.clear())]
    (thread,) = threads()
    source.script.put("the batch that drops the last reference")
    thread.join(10)
    assert not thread.is_alive()
    wait_until(lambda: source.closed)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_copy_closes_nothing():
    source = Scripted(ends=False)
    ahead = Ahead(source, same)
    assert source.waiting.wait(10)
    child = os.fork()
    if child == 0:
        ahead.close()
        os._exit(source.closed)
    assert os.waitpid(child, 0)[1] == 0
    ahead.close()
    assert source.closed
