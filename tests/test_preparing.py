"""Batches that are prepared in a background thread: the engine's promises hold as before."""

from __future__ import annotations

import threading
import time

import pytest

from headrace import DataLoader, epochs
from headrace.base.errors import WorkerError, WorkerTimeoutError
from headrace.base.messages import Exhausted, Failed, Finished, Pull, Task
from headrace.deliver.device import Delivery
from headrace.engines.threads import ThreadEngine
from headrace.flow import Flow
from headrace.order.key_plan import KeyPlan
from headrace.preparing import PreparingEngine
from headrace.testing import FlakyDataset
from tests.engines.jobs import Gated, job, processes, run, wait_for
from tests.needs import needs_torch

KINDS = {
    "threads": lambda **options: ThreadEngine(2, 2, **options),
    "fork": lambda **options: processes("fork", **options),
}


@pytest.fixture(params=KINDS)
def make(request):
    """Makes a preparing engine; closes it in the end."""
    made = []

    def make(prepare=lambda batch: ("prepared", batch), *, depth=2, begin=None, **options):
        engine = KINDS[request.param](**options)
        made.append(PreparingEngine(engine, Delivery(prepare, begin), depth))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
        vars(engine._engine).clear()  # see tests/engines/test_engines.py
        vars(engine).clear()


def test_every_batch_is_prepared_once_in_a_thread_of_its_own(make):
    names = []

    def prepare(batch):
        names.append(threading.current_thread().name)
        return [sample.upper() for sample in batch]

    engine = make(prepare)
    engine.start(job("abcdefgh"))
    assert (engine.workers, engine.capacity, engine.works_ahead) == (2, 4, True)
    batches = {outcome.number: outcome.batch for outcome in run(engine, [[i] for i in range(8)])}
    assert batches == {i: ["ABCDEFGH"[i]] for i in range(8)}
    assert names == ["headrace-deliver"] * 8


def test_the_thread_begins_with_its_settings(make):
    begun = []
    engine = make(begin=lambda: begun.append(threading.current_thread().name))
    engine.start(job("ab"))
    list(run(engine, [[0], [1]]))
    assert begun == ["headrace-deliver"]


def test_the_flow_over_it_keeps_the_order(make):
    engine = make(lambda batch: batch[0] * 10)
    engine.start(job(range(100)))
    assert list(Flow(KeyPlan(iter([[i] for i in range(50)])), engine)) == [10 * i for i in range(50)]


def test_errors_of_the_dataset_and_of_the_preparation_are_outcomes_of_their_batch(make):
    def prepare(batch):
        if batch == ["c"]:
            raise BufferError("no room on the device")
        return batch

    engine = make(prepare)
    engine.start(job(FlakyDataset("abcd", bad=[1])))
    outcomes = {outcome.number: outcome for outcome in run(engine, [[0], [1], [2], [3]])}
    assert type(outcomes[1]) is Failed
    assert (type(outcomes[1].error), str(outcomes[1].error)) == (ValueError, "sample 1 is bad")
    assert type(outcomes[2].error) is BufferError
    assert [outcomes[n].batch for n in (0, 3)] == [["a"], ["d"]]


def test_a_preparation_that_raises_stop_iteration_ends_nothing(make):
    engine = make(lambda batch: next(iter([])))
    engine.start(job("ab"))
    outcomes = list(run(engine, [[0], [1]]))
    assert [type(outcome) for outcome in outcomes] == [Failed, Failed]


def test_streams_end_as_they_do_without(make):
    engine = make()
    engine.start(job("abc", iterable=True))
    outcomes = list(run(engine, [Pull(2)] * 6))
    assert sum(isinstance(outcome, Exhausted) for outcome in outcomes) == 2
    batches = sorted(outcome.batch for outcome in outcomes if isinstance(outcome, Finished))
    assert batches == [("prepared", ["a", "b"])] * 2 + [("prepared", ["c"])] * 2


def test_a_new_epoch_in_the_middle_and_at_the_end(make):
    engine = make(lambda batch: batch[0])
    engine.start(job(range(100)))
    assert list(Flow(KeyPlan(iter([[i] for i in range(10)])), engine)) == list(range(10))
    engine.begin_epoch()  # with nothing in flight
    half = Flow(KeyPlan(iter([[i] for i in range(10, 30)])), engine)
    assert [next(half) for _ in range(5)] == list(range(10, 15))
    half.abandon()
    engine.begin_epoch()  # with tasks in flight, and prepared batches that wait
    for _ in range(3):
        assert list(Flow(KeyPlan(iter([[i] for i in range(40, 60)])), engine)) == list(range(40, 60))
        engine.begin_epoch()


def test_many_short_epochs(make):
    """The thread of one epoch must not take an outcome, or an interrupt, of the next."""
    engine = make(lambda batch: batch[0])
    engine.start(job(range(100)))
    for epoch in range(40):
        n = epoch % 5
        flow = Flow(KeyPlan(iter([[i] for i in range(10)])), engine)
        flow.fill()
        assert [next(flow) for _ in range(n)] == list(range(n))
        flow.abandon()
        engine.begin_epoch()
    assert list(Flow(KeyPlan(iter([[i] for i in range(10)])), engine)) == list(range(10))


def test_preparing_runs_no_further_ahead_than_its_depth(make):
    prepared = []
    engine = make(lambda batch: prepared.append(batch) or batch, depth=1)
    engine.start(job("abcd"))
    for number in range(4):
        engine.submit(Task(number, [number], number % 2))
    deadline = time.monotonic() + 10
    while not prepared and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.1)
    assert len(prepared) <= 2
    assert sorted(engine.receive().batch for _ in range(4)) == [["a"], ["b"], ["c"], ["d"]]


def test_closing_while_somebody_waits(make, tmp_path):
    engine = make()
    engine.start(job(Gated(tmp_path)))
    engine.submit(Task(0, [0], 0))
    wait_for(tmp_path / "begun-0")
    told = []

    def receive():
        try:
            told.append(engine.receive())
        except Exception as error:  # noqa: BLE001
            told.append(error)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    time.sleep(0.05)
    opening = threading.Timer(0.05, (tmp_path / "open").touch)
    opening.start()
    engine.close()
    engine.close()
    opening.join()
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(told[0], (WorkerError, Finished)), told


def test_closing_with_prepared_batches_that_nobody_took(make):
    engine = make()
    engine.start(job("abcd"))
    for number in range(4):
        engine.submit(Task(number, [number], number % 2))
    assert isinstance(engine.receive(), Finished)
    engine.close()


def test_closing_before_anything_was_submitted(make):
    engine = make()
    engine.start(job("ab"))
    engine.close()
    with pytest.raises(WorkerError, match="closed"):
        engine.receive()


def test_a_time_out_counts_only_while_the_loop_waits(make, tmp_path):
    engine = make(timeout=1)
    engine.start(job(Gated(tmp_path)))
    engine.submit(Task(0, [0], 0))
    wait_for(tmp_path / "begun-0")
    time.sleep(1.3)  # the loop is busy with something else
    (tmp_path / "open").touch()
    assert engine.receive() == Finished(0, ("prepared", [0]))


def test_a_time_out_is_raised_and_the_batch_still_comes(make, tmp_path):
    engine = make(timeout=0.3)
    engine.start(job(Gated(tmp_path)))
    engine.submit(Task(0, [0], 0))
    with pytest.raises(WorkerTimeoutError, match=r"timed out after 0\.3 seconds"):
        engine.receive()
    (tmp_path / "open").touch()
    deadline = time.monotonic() + 10
    while True:
        try:
            outcome = engine.receive()
            break
        except WorkerTimeoutError:
            assert time.monotonic() < deadline
    assert outcome == Finished(0, ("prepared", [0]))


def test_an_interrupt_in_the_loop_loses_no_batch(make):
    """As Ctrl-C does while the loop waits."""
    engine = make(lambda batch: batch[0])
    engine.start(job(range(10)))
    engine.submit(Task(0, [0], 0))
    take, raised = engine._ahead._line.take, []

    def interrupted():
        if not raised:
            raised.append(True)
            raise KeyboardInterrupt
        return take()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(engine._ahead._line), "take", lambda line: interrupted())
        with pytest.raises(KeyboardInterrupt):
            engine.receive()
        assert engine.receive() == Finished(0, 0)


def test_batches_are_prepared_in_order_and_those_that_come_early_wait(tmp_path):
    """Else all that overtake a slow one would be prepared, and wait on the device."""

    class FirstIsSlow(Gated):
        def __getitem__(self, index):
            return super().__getitem__(index) if index == 0 else index

    prepared = []
    inner = ThreadEngine(2, 8)
    engine = PreparingEngine(inner, Delivery(lambda batch: prepared.append(batch[0]) or batch[0]), 2, in_order=True)
    try:
        engine.start(job(FirstIsSlow(tmp_path)))
        for number in range(8):
            engine.submit(Task(number, [number], 0 if number == 0 else 1))
        wait_for(tmp_path / "begun-0")
        time.sleep(0.1)
        assert prepared == []
        (tmp_path / "open").touch()
        assert [engine.receive() for _ in range(8)] == [Finished(number, number) for number in range(8)]
        assert prepared == list(range(8))
    finally:
        engine.close()


def test_what_is_no_batch_comes_at_once_though_batches_come_in_order(tmp_path):
    class SlowOrBad(Gated):
        def __getitem__(self, index):
            if index == 2:
                raise ValueError("bad")
            return super().__getitem__(index) if index == 0 else index

    engine = PreparingEngine(ThreadEngine(2, 8), Delivery(lambda batch: batch[0]), 2, in_order=True)
    try:
        engine.start(job(SlowOrBad(tmp_path)))
        for number in range(4):
            engine.submit(Task(number, [number], 0 if number == 0 else 1))
        failed = engine.receive()
        assert (failed.number, str(failed.error)) == (2, "bad")
        (tmp_path / "open").touch()
        assert [engine.receive().number for _ in range(3)] == [0, 1, 3]
    finally:
        engine.close()


@needs_torch
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_samples_that_were_left_out_are_reported_though_their_batch_cannot_be_prepared(engine, monkeypatch):
    class Dataset:
        def __getitem__(self, index):
            if index == 1:
                raise KeyError("bad sample")
            return index

        def __len__(self):
            return 6

    def pin(batch):
        if 0 in batch:
            raise ValueError("cannot be pinned")
        return batch

    monkeypatch.setattr(epochs, "pin_function", lambda device: pin)
    options = {"num_workers": 2, "engine": engine, "on_error": "skip", "pin_memory": True}
    loader = DataLoader(Dataset(), 2, collate_fn=list, **options)
    batches = iter(loader)
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="cannot be pinned"):
        next(batches)
    assert list(batches) == [[2, 3], [4, 5]]
    assert [bad.key for bad in loader.errors] == [1]
