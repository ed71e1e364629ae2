"""What is kept of a run, and what it adds up to."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from headrace import DataLoader, read_text
from headrace.base.messages import Place, PlacedKeys, Pull, Task
from headrace.insight.figures import Setup, figures_of
from headrace.insight.recorder import Recorder, bytes_of
from headrace.insight.timeline import trace_of
from tests.insight.recorded import MS, Loop, ends_of, indices, recorded, span_of, use_clock
from tests.needs import needs_torch


def test_waiting_counts_from_the_beginning_to_the_end(monkeypatch):
    recorder = recorded(monkeypatch, [(100, 50), (2, 8), (4, 6)])
    totals = recorder.totals()
    assert (totals.batches, totals.samples, totals.turns, totals.runs, totals.ended) == (3, 3, 2, 1, 1)
    assert (totals.wait_ns, totals.step_ns, totals.start_ns) == (6 * MS, 64 * MS, 100 * MS)
    assert (totals.elapsed_ns, totals.waited_ns) == (170 * MS, 106 * MS)
    figures = figures_of(recorder)
    assert figures.wait == pytest.approx(0.106 / 3)
    assert figures.step == pytest.approx(0.064 / 3)
    assert figures.waited == pytest.approx(106 / 170)
    assert figures.late == pytest.approx(0.003)


def test_the_wait_for_the_start_and_for_the_end_are_counted(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    run = recorder.begin(0)
    clock.now += 30 * MS
    run.ready()
    clock.now += 500 * MS  # the loop has something else to do before it asks
    for number in range(2):
        run.ask()
        clock.now += 10 * MS
        run.batches += 1
        run.give(number, None)
        clock.now += 20 * MS
    run.ask()
    clock.now += 40 * MS
    run.end()
    clock.now += 99 * MS
    run.ask()  # once more, in vain
    run.end()
    totals = recorder.totals()
    assert (totals.elapsed_ns, totals.start_ns, totals.waited_ns) == (130 * MS, 40 * MS, 90 * MS)


def test_what_is_not_timed_is_taken_to_be_like_what_is(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock)
    for number in range(10_000):
        if not loop.run.batches & loop.run.mask or loop.run.open is not None:
            loop.turn(number, 0.0003, 0.0001)
        else:
            loop.run.batches += 1
            clock.now += 400
    loop.end()
    assert recorder.totals().turns < 5000
    assert figures_of(recorder).waited == pytest.approx(0.75, abs=0.01)


def test_starting_ends_where_work_begins(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock)
    loop.make(0, 0, span_of(30, 60))
    loop.turn(0, 100, 10)
    assert recorder.totals().starting_ns == 30 * MS
    assert figures_of(recorder).started == pytest.approx(30 / 100)


def test_stages_are_averages_over_the_batches_made(monkeypatch):
    recorder = recorded(monkeypatch, [(1, 1)] * 4, lambda number: span_of(number, 3, 2, 1))
    figures = figures_of(recorder)
    assert (figures.fetch, figures.collate, figures.pack) == pytest.approx((0.003, 0.002, 0.001))
    assert figures.work == pytest.approx(0.006)
    assert {number: worker.batches for number, worker in recorder.totals().workers.items()} == {0: 2, 1: 2}


def test_slow_batches_that_are_told_besides_change_no_average(monkeypatch):
    recorder = recorded(
        monkeypatch, [(1, 1)] * 4, lambda number: span_of(number, 300 if number == 2 else 3, is_extra=number == 2)
    )
    assert figures_of(recorder).fetch == pytest.approx(0.003)
    assert len(recorder.work) == 4


def test_epochs_add_up_and_are_told_apart(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    for epoch, wait in enumerate((1, 5)):
        loop = Loop(recorder, clock, epoch)
        for number in range(3):
            loop.turn(number, wait, 10)
        loop.end()
    assert recorder.totals().wait_ns == 12 * MS
    assert recorder.totals(1).wait_ns == 10 * MS
    assert figures_of(recorder, 0).wait == pytest.approx(0.001)
    assert figures_of(recorder).wait == pytest.approx(0.003)
    with pytest.raises(KeyError):
        recorder.totals(2)


def test_old_epochs_are_only_counted(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    for epoch in range(100):
        loop = Loop(recorder, clock, epoch)
        loop.turn(0, 1, 1)
        loop.end()
    assert recorder.totals().batches == 100
    assert recorder.totals(99).batches == 1
    with pytest.raises(KeyError):
        recorder.totals(3)


def test_the_step_at_hand_is_not_counted_before_it_is_over(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock)
    for number in range(3):
        loop.turn(number, 1, 1)
    assert recorder.totals().turns == 1  # of three: the first is not counted, the last not over
    assert recorder.totals().batches == 3


def test_a_batch_is_ready_if_it_was_sent_before_it_was_asked_for(monkeypatch):
    # Asked for at 0, 10, 20, 30 ms; sent at 5 (late), 8 (ready), 15 (ready), 18 (ready, and ahead at 20).
    sent = {0: 5, 1: 8, 2: 15, 3: 18}
    recorder = recorded(monkeypatch, [(5, 5), (0, 10), (0, 10), (0, 10)], lambda n: span_of(0, sent[n]))
    figures = figures_of(recorder)
    assert figures.ready == 1.0  # the first batch of an epoch is left out
    assert figures.ahead == pytest.approx((1 + 2 + 1) / 3)
    assert figures.receive == 0.0


def test_receiving_is_what_comes_after_sending_and_asking(monkeypatch):
    recorder = recorded(monkeypatch, [(5, 5), (6, 4), (0, 10)], lambda n: span_of(0, 12 if n == 1 else 1))
    # Batch 1: asked for at 10, sent at 12, there at 16.
    assert figures_of(recorder).receive == pytest.approx(0.002)
    assert figures_of(recorder).ready == 0.5


def test_stalls_are_the_share_of_the_worst_tenth(monkeypatch):
    turns = [(1, 10)] * 21
    turns[5] = turns[6] = (90, 10)
    assert figures_of(recorded(monkeypatch, turns)).stalls == pytest.approx(180 / 198)


def test_the_slowest_samples_are_named_by_their_keys(monkeypatch):
    recorder = Recorder()
    loop = Loop(recorder, use_clock(monkeypatch))
    for number in range(30):
        slow = span_of(0, 9, n_samples=2, slowest=1, slowest_ns=1000 + number, ends=ends_of(1, 9))
        loop.make(number, 0, slow, indices(number, 100 + number))
    assert [int(sample.key) for sample in recorder.slow_samples()] == list(range(129, 119, -1))
    assert recorder.slow_samples()[0].ns == 1029


def test_where_samples_were_left_out_keys_are_not_guessed(monkeypatch):
    recorder = Recorder()
    slow = span_of(0, 9, n_samples=1, slowest=0, slowest_ns=7, ends=ends_of(9))
    Loop(recorder, use_clock(monkeypatch)).make(0, 0, slow, indices(5, 6))
    assert recorder.slow_samples()[0].key is None


@pytest.mark.parametrize(
    ("keys", "n_samples", "kept"),
    [
        (PlacedKeys(indices(4, 5), Place(0, 0, 1)), 2, [4, 5]),
        ([("a", 1), ("b", 2)], 2, [("a", 1), ("b", 2)]),
        (("a", 1), 1, [("a", 1)]),
        ("a.jpg", 1, ["a.jpg"]),
        (Pull(3), 3, []),
        (iter([1, 2]), 2, None),
    ],
)
def test_keys_are_kept_whatever_they_are(monkeypatch, keys, n_samples, kept):
    recorder = Recorder()
    Loop(recorder, use_clock(monkeypatch)).make(0, 0, span_of(0, 1, n_samples=n_samples), keys)
    assert recorder.work[0].n_samples == n_samples
    if kept is not None:
        assert list(recorder.work[0].keys) == kept
    trace_of(recorder, Setup())


def test_tasks_that_are_no_batches_only_explain(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock)
    for number, (worker, n_rows) in enumerate([(0, 30), (0, 0), (1, 0), (1, 20), (0, 0)]):  # two windows, in parts
        stages = (("read", MS), ("map", 5 * MS))
        loop.run.n_tasks += 1
        span = span_of(0, 6, stages=stages)
        loop.run.made(Task(number, None, worker), span, f"window {number}", n_rows)
    for number in range(5):
        loop.turn(number, 1, 1)
        loop.run.samples += 9
    loop.end()
    figures = figures_of(recorder)
    assert (figures.batches, figures.samples) == (5, 50)
    assert figures.stages == pytest.approx({"read": 0.001, "map": 0.005, "send": 0})  # 30 ms for five batches
    workers = recorder.totals().workers
    assert [(workers[n].batches, workers[n].tasks, workers[n].samples) for n in (0, 1)] == [(3, 3, 30), (2, 2, 20)]


def test_work_ahead_of_the_loop_is_not_put_on_the_batches_it_got(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock)
    for number in range(4):
        loop.run.made(Task(number, None), span_of(0, 8), f"window {number}", 8)
    for number in range(2):
        loop.turn(number, 1, 1)
        loop.run.samples += 3
    assert figures_of(recorder).fetch == pytest.approx(0.004)  # windows of two batches each


def test_shares_of_batches_add_up(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock)
    for worker in range(3):
        loop.run.made(Task(worker, None, worker), span_of(0, 6), "a window", 100)
    for number in range(7):
        loop.turn(number, 1, 1)
    assert [worker.batches for worker in recorder.totals().workers.values()] == [3, 2, 2]


def test_replaced_workers_are_counted_and_dated(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    clock.now = 7
    recorder.replaced(1)
    assert (recorder.restarts, list(recorder.replacements)) == (1, [(1, 7)])


def test_memory_is_bounded(monkeypatch):
    recorder = recorded(monkeypatch, [(5, 5)] * 5000, lambda number: span_of(number, 1))
    assert len(recorder.work) == len(recorder.turns) == 2048
    assert recorder.totals().turns == 4999
    big = span_of(0, 1, n_samples=9999, slowest=1, slowest_ns=5, ends=ends_of(*range(9999)))
    loop = Loop(recorder, use_clock(monkeypatch))
    loop.make(0, 0, big, list(range(9999)))
    assert recorder.work[-1].span.ends == b""
    assert len(recorder.work[-1].keys) <= 256
    assert recorder.slow_samples()[0].key == 1


def test_a_copy_has_times_of_its_own(monkeypatch):
    recorder = recorded(monkeypatch, [(1, 1)] * 3)
    for other in (copy.deepcopy(recorder), pickle.loads(pickle.dumps(recorder))):
        assert other.totals().batches == 0
    assert recorder.totals().batches == 3


def test_switched_off_nothing_is_recorded():
    recorder = Recorder()
    recorder.is_on = False
    assert recorder.begin(0) is None
    assert recorder.totals().runs == 0


def test_workers_are_told_of_as_if_all_batches_had_been_timed(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock)
    for number in range(40):
        if number < 10:
            loop.make(number, number % 2, span_of(clock.now / MS, 3, cpu=MS))
        else:
            loop.run.n_tasks += 1
        loop.turn(number, 3, 1)
    totals = recorder.totals()
    assert {number: (worker.batches, worker.busy_ns) for number, worker in totals.workers.items()} == {
        0: (20, 60 * MS),
        1: (20, 60 * MS),
    }
    figures = figures_of(recorder)
    assert (figures.fetch, figures.cpu) == pytest.approx((0.003, 1 / 3))


@pytest.mark.parametrize(("drop_last", "samples"), [(False, 1000), (True, 992)])
def test_the_last_batch_of_a_stream_may_be_short(tmp_path, drop_last, samples):
    path = tmp_path / "lines.txt"
    path.write_text("a line\n" * 1000)
    loader = DataLoader(read_text(path, block_bytes=100), batch_size=32, drop_last=drop_last)
    for _ in loader:
        pass
    assert loader.stats()["samples"] == samples


def test_arrays_strings_and_bytes_count_wherever_they_are():
    batch = {"x": np.zeros((2, 3), np.float32), "y": [np.zeros(2), ("abc", b"de")], "z": 7, "n": None}
    assert bytes_of(batch) == 24 + 16 + 3 + 2


def test_long_lists_are_reckoned_from_some_of_their_elements():
    assert bytes_of(["x" * 10] * 1000) == 10_000
    assert 90_000 < bytes_of(["x" * (i % 200) for i in range(1000)]) < 110_000


def test_what_refuses_to_be_looked_at_counts_nothing():
    class Odd(dict):
        def values(self):
            raise RuntimeError

    assert bytes_of(Odd()) == 0
    deep: list[object] = []
    deep.append(deep)
    assert bytes_of(deep) == 0


@needs_torch
def test_tensors_count():
    import torch

    assert bytes_of([torch.zeros(4), torch.zeros(2, dtype=torch.uint8)]) == 18
