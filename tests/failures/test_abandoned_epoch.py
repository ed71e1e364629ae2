"""Epochs that are not brought to their end: nothing is left of them, and the next one is whole."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import weakref

import pytest

from headrace import DataLoader
from headrace.base.endings import await_dropped
from headrace.testing import SlowDataset
from tests.failures.outcomes import Each, outcomes, plain
from tests.failures.test_exception_in_stream import Stream

WHOLE = [[i, i + 1] for i in range(0, 20, 2)]


def nobody_works():
    """Whether all workers are gone; those that were dropped leave in a moment."""
    await_dropped()
    names = [thread.name for thread in threading.enumerate()]
    return not multiprocessing.active_children() and not any(name.startswith("headrace") for name in names)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("after", [0, 1, 9])
def test_break_in_the_middle(workers, persistent, after):
    loader = DataLoader(range(20), batch_size=2, persistent_workers=persistent, **workers)
    for _ in range(3):
        for i, batch in enumerate(loader):
            assert plain(batch) == WHOLE[i]
            if i == after:
                break
    assert outcomes(loader) == WHOLE
    loader.close()
    assert nobody_works()


def test_the_next_epoch_is_started_early(engine):
    loader = DataLoader(range(20), batch_size=2, **engine)
    first = iter(loader)
    assert plain(next(first)) == [0, 1]
    assert outcomes(loader) == WHOLE
    assert outcomes(first) == WHOLE[1:]


def test_persistent_workers_start_over_with_the_next_iterator(workers):
    loader = DataLoader(range(20), batch_size=2, persistent_workers=True, **workers)
    first = iter(loader)
    assert plain(next(first)) == [0, 1]
    second = iter(loader)
    assert second is first  # as torch's
    assert outcomes(second) == WHOLE
    loader.close()


def test_persistent_workers_that_were_closed_by_their_iterator_are_started_anew(workers):
    loader = DataLoader(range(20), batch_size=2, persistent_workers=True, **workers)
    iterator = iter(loader)
    assert plain(next(iterator)) == [0, 1]
    iterator.close()
    assert outcomes(loader) == WHOLE
    loader.close()


def test_two_iterators_at_once(engine):
    loader = DataLoader(range(20), batch_size=2, **engine)
    pairs = [(plain(a), plain(b)) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [(batch, batch) for batch in WHOLE]


def test_two_streams_at_once(engine):
    loader = DataLoader(Stream(12), batch_size=3, **engine)
    pairs = [(plain(a), plain(b)) for a, b in zip(loader, loader, strict=True)]
    assert all(a == b for a, b in pairs)
    assert sorted(number for batch, _ in pairs for number in batch) == list(range(12))


def test_a_stream_that_is_left_early_starts_over(workers):
    loader = DataLoader(Stream(1000), batch_size=2, persistent_workers=True, **workers)
    for _ in range(3):
        assert plain(next(iter(loader))) == [0, 2]
    loader.close()


def test_an_iterator_that_is_dropped_ends_its_workers(workers):
    iterator = iter(DataLoader(range(20), **workers))
    next(iterator)
    assert not nobody_works()
    del iterator
    assert nobody_works()


def test_an_iterator_in_a_cycle_is_collected(workers):
    class Holder:
        pass

    holder = Holder()
    holder.itself = holder
    holder.iterator = iter(DataLoader(range(20), **workers))
    next(holder.iterator)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
    assert nobody_works()


def test_a_loader_with_persistent_workers_that_is_dropped_ends_them(workers):
    loader = DataLoader(range(20), persistent_workers=True, **workers)
    next(iter(loader))
    del loader
    gc.collect()
    assert nobody_works()


def test_an_iterator_that_is_used_up_has_no_workers(workers):
    iterator = iter(DataLoader(range(4), **workers))
    assert len(list(iterator)) == 4
    assert nobody_works()
    with pytest.raises(StopIteration):
        next(iterator)


def test_leaving_does_not_wait_for_the_batches_that_nobody_wants():
    """A worker stops after the sample that it is at, and not after its batch."""
    loader = DataLoader(SlowDataset(range(1000), 0.05), batch_size=100, num_workers=2)
    iterator = iter(loader)
    time.sleep(0.2)
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < 3  # a batch takes 5 seconds


@pytest.mark.parametrize("persistent", [False, True])
def test_a_break_does_not_wait_for_the_sample_at_work(workers, persistent):
    loader = DataLoader(SlowDataset(range(100), lambda index: index), persistent_workers=persistent, **workers)
    for _ in loader:
        start = time.monotonic()
        break
    del loader
    assert time.monotonic() - start < 0.9  # the sample takes one second at least
    assert nobody_works()


def test_threads_that_are_left_stop_after_their_sample():
    loader = DataLoader(SlowDataset(range(1000), 0.05), batch_size=100, num_workers=2, engine="threads")
    iterator = iter(loader)
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < 3
    assert nobody_works()


def test_a_worker_that_waits_to_be_read_can_leave():
    """Its message is larger than the socket takes, and nobody reads it any more."""
    loader = DataLoader(Each(lambda i: "x" * 2**22, 20), batch_size=None, num_workers=2)
    iterator = iter(loader)
    assert len(next(iterator)) == 2**22
    time.sleep(0.1)
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < 3


def test_closing_twice_and_using_a_closed_iterator(workers):
    iterator = iter(DataLoader(range(20), **workers))
    iterator.close()
    iterator.close()
    with pytest.raises((StopIteration, RuntimeError)):
        next(iterator)


def test_closing_from_another_thread_frees_a_loop_that_waits():
    iterator = iter(DataLoader(SlowDataset(range(4), 2), num_workers=1))
    ended = []

    def wait():
        try:
            next(iterator)
        except (RuntimeError, StopIteration) as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    iterator.close()
    thread.join(10)
    assert len(ended) == 1
    assert nobody_works()


def test_an_error_in_the_loop_leaves_nothing(workers):
    def train():
        for batch in DataLoader(range(20), **workers):
            if plain(batch) == [3]:
                raise ArithmeticError("the loss is not a number")

    with pytest.raises(ArithmeticError):
        train()
    gc.collect()
    assert nobody_works()
