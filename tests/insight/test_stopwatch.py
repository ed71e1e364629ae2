"""Workers tell when they made their batches, whatever runs them."""

from __future__ import annotations

import time
from array import array

import numpy as np
import pytest

from headrace.base.messages import Finished, PackedIndices, Pull, Span, Task
from headrace.data.dataset import TensorDataset
from headrace.engines.stopwatch import Stopwatch, cut_trailer, pack_trailer
from headrace.engines.worker import Worker
from headrace.testing import SlowDataset
from tests.engines.jobs import job
from tests.insight.recorded import indices

SLEEP_S = 0.01
ENDS = array("q", [7, -8, 2**60]).tobytes()


def span_of(worker: Worker, keys: object, number: int = 0) -> Span:
    outcome = worker.work(Task(number, keys))
    assert isinstance(outcome, Finished)
    assert outcome.span is not None
    return outcome.span


def slow_collate(samples):
    time.sleep(SLEEP_S)
    return samples


def test_a_job_that_is_not_timed_tells_nothing():
    outcome = Worker(job(range(3))).work(Task(0, [0, 1]))
    assert isinstance(outcome, Finished)
    assert outcome.span is None


@pytest.mark.parametrize("collate_fn", [None, list])
def test_fetching_is_told_apart_from_collating_and_every_sample_from_the_others(collate_fn):
    slow = SlowDataset(range(9), lambda index: 5 * SLEEP_S if index == 7 else 0.0)
    span = span_of(Worker(job(slow, timed=True, collate_fn=collate_fn)), indices(3, 7, 8))
    assert span.begun <= span.made == span.sent
    assert [name for name, _ in span.stages] == ["fetch", "collate"]
    assert sum(ns for _, ns in span.stages) == span.made - span.begun
    assert dict(span.stages)["fetch"] > 5 * SLEEP_S * 1e9
    assert (span.n_samples, span.slowest) == (3, 1)
    assert span.slowest_ns > 5 * SLEEP_S * 1e9
    ends = [span.begun, *array("q", span.ends), span.begun + dict(span.stages)["fetch"]]
    assert len(ends) == 5
    assert ends == sorted(ends)


def test_collating_is_told_apart_from_fetching():
    span = span_of(Worker(job(range(9), timed=True, collate_fn=slow_collate)), indices(1, 2))
    assert dict(span.stages)["collate"] > SLEEP_S * 1e9
    assert span.n_samples == 2


def test_what_comes_as_a_batch_is_all_fetched():
    dataset = TensorDataset(np.arange(12))
    span = span_of(Worker(job(dataset, timed=True, collate_fn=None)), indices(1, 2, 3))
    assert span.stages == (("fetch", span.made - span.begun),)
    assert (span.n_samples, span.slowest, span.ends) == (-1, -1, b"")


def test_single_samples_are_timed():
    worker = Worker(job(SlowDataset(range(5), SLEEP_S), timed=True, batched=False, collate_fn=None))
    span = span_of(worker, 3)
    assert (span.n_samples, span.slowest) == (1, 0)
    assert dict(span.stages)["fetch"] > SLEEP_S * 1e9


def test_a_dataset_may_give_its_samples_as_an_iterator():
    class Lazy:
        def __getitem__(self, index):
            raise AssertionError

        def __getitems__(self, indices):
            return iter(indices)

    assert span_of(Worker(job(Lazy(), timed=True)), indices(1, 2)).n_samples == -1


def test_streams_are_timed():
    worker = Worker(job(SlowStream(), timed=True, iterable=True))
    span = span_of(worker, Pull(3))
    assert span.n_samples == 3
    assert len(array("q", span.ends)) == 3
    assert dict(span.stages)["fetch"] > 3 * SLEEP_S * 1e9


class SlowStream:
    def __iter__(self):
        for i in range(10):
            time.sleep(SLEEP_S)
            yield i


def test_who_waits_does_not_compute():
    worker = Worker(job(SlowDataset(range(5), 5 * SLEEP_S), timed=True))
    span = span_of(worker, indices(0, 1))
    assert 0 <= span.cpu < (span.made - span.begun) / 2


def test_after_an_error_timing_goes_on():
    worker = Worker(job([1, 2, 3], timed=True))
    assert not isinstance(worker.work(Task(0, indices(99))), Finished)
    assert span_of(worker, indices(1), number=1).n_samples == 1


def test_quick_batches_are_timed_now_and_then():
    worker = Worker(job(range(9), timed=True, collate_fn=len))
    outcomes = [worker.work(Task(number, PackedIndices(indices(1).array))) for number in range(20_000)]
    timed = [outcome.number for outcome in outcomes if isinstance(outcome, Finished) and outcome.span is not None]
    assert timed[0] == 0
    assert len(timed) < 10_000


def test_a_slow_batch_among_quick_ones_is_always_told_and_counted_apart(monkeypatch):
    stopwatch = Stopwatch()
    clock = FakeClock()
    monkeypatch.setattr("headrace.engines.stopwatch.perf_counter_ns", clock)
    told = {}
    for number in range(200):
        stopwatch.begin(number)
        clock.now += 50_000_000 if number == 150 else 2_000_000
        told[number] = stopwatch.end()
    assert told[40] is None
    span = told[150]
    assert span is not None
    assert span.is_extra
    assert not told[0].is_extra


def test_laps_divide_the_time_of_a_task_among_its_stages(monkeypatch):
    stopwatch, clock = Stopwatch(first="read"), FakeClock()
    monkeypatch.setattr("headrace.engines.stopwatch.perf_counter_ns", clock)
    collate = stopwatch.watched(lambda samples: clock.go(500), batched=True)
    stopwatch.lap("read")  # nothing is timed yet
    stopwatch.begin(0)
    for stage, ns in (("read", 10), ("map", 200), ("read", 30)):
        clock.go(ns)
        stopwatch.lap(stage)
    clock.go(1)
    for _ in range(2):
        collate([1, 2])
    clock.go(7)
    span = stopwatch.end()
    assert span is not None
    assert span.stages == (("read", 41), ("map", 200), ("collate", 1007))
    assert span.n_samples == 2


class FakeClock:
    now = 0

    def __call__(self) -> int:
        return self.now

    def go(self, ns: int) -> None:
        self.now += ns


@pytest.mark.parametrize(
    "span",
    [
        None,
        Span(1, 3, 3, 4, (("fetch", 2),)),
        Span(1, 3, 3, -1, (("read", 1), ("map", 2**40), ("collate", 0)), 5, True, 1, 9, ENDS),
    ],
)
@pytest.mark.parametrize("message", [b"", b"\x00\x01", b"x" * 1000])
def test_a_trailer_comes_back_as_it_was(message, span):
    sent = memoryview(message + pack_trailer(span, sent=77))
    rest, found = cut_trailer(sent)
    assert bytes(rest) == message
    assert found == (None if span is None else span._replace(sent=77))
