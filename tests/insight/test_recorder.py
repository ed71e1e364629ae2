"""What is kept of a run, and what it adds up to."""

from __future__ import annotations

import copy
import pickle

import pytest

from headrace import DataLoader, read_text
from headrace.base.messages import Place, PlacedKeys, Pull, Task
from headrace.insight.figures import Setup, figures_of
from headrace.insight.recorder import Recorder
from headrace.insight.trace import trace_of
from tests.insight.recorded import MS, Loop, ends_of, indices, recorded, span_of, use_clock


def test_turns_add_up_without_the_first_of_an_epoch(monkeypatch):
    recorder = recorded(monkeypatch, [(100, 50), (2, 8), (4, 6)])
    totals = recorder.totals()
    assert (totals.batches, totals.turns, totals.runs, totals.ended) == (3, 2, 1, 1)
    assert (totals.wait_ns, totals.step_ns, totals.start_ns) == (6 * MS, 14 * MS, 100 * MS)
    assert totals.elapsed_ns == 170 * MS
    figures = figures_of(recorder)
    assert figures.wait == pytest.approx(0.003)
    assert figures.step == pytest.approx(0.007)
    assert figures.waited == pytest.approx(0.3)
    assert figures.started == pytest.approx(100 / 170)


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


def test_a_batch_is_ready_if_it_was_packed_before_it_was_asked_for(monkeypatch):
    # Asked for at 0, 10, 20, 30 ms; packed at 5 (late), 8 (ready), 15 (ready), 18 (ready, and ahead at 20).
    packed = {0: 5, 1: 8, 2: 15, 3: 18}
    recorder = recorded(monkeypatch, [(5, 5), (0, 10), (0, 10), (0, 10)], lambda n: span_of(0, packed[n]))
    figures = figures_of(recorder)
    assert figures.ready == 1.0  # the first batch of an epoch is left out
    assert figures.ahead == pytest.approx((1 + 2 + 1) / 3)
    assert figures.receive == 0.0


def test_receiving_is_what_comes_after_packing_and_asking(monkeypatch):
    recorder = recorded(monkeypatch, [(5, 5), (6, 4), (0, 10)], lambda n: span_of(0, 12 if n == 1 else 1))
    # Batch 1: asked for at 10, packed at 12, there at 16.
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


def test_rows_of_windows_are_counted_as_batches(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock, size=10)
    for number, n_rows in enumerate((25, 0, 0, 25, 0)):  # two windows were read, and cut in parts
        loop.run.made(Task(number, f"window {number}", 0), span_of(0, 6), n_rows)
    for number in range(5):
        loop.turn(number, 1, 1)
    loop.end()
    figures = figures_of(recorder)
    assert figures.samples == 50
    assert figures.fetch == pytest.approx(0.006)  # 30 ms for five batches


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
        loop.turn(number, 3, 1)
    totals = recorder.totals()
    assert {number: (worker.batches, worker.busy_ns) for number, worker in totals.workers.items()} == {
        0: (20, 60 * MS),
        1: (20, 60 * MS),
    }
    figures = figures_of(recorder)
    assert (figures.fetch, figures.cpu) == pytest.approx((0.003, 1 / 3))


def test_the_samples_of_a_stream_are_counted_though_few_windows_are_timed(monkeypatch):
    clock, recorder = use_clock(monkeypatch), Recorder()
    loop = Loop(recorder, clock, size=8)
    loop.run.made(Task(0, "window 0", 0), span_of(0, 4), 32)
    for number in range(20):
        loop.turn(number, 1, 1)
    loop.run.ends_short(5)
    totals = recorder.totals()
    assert (totals.batches, totals.samples) == (20, 155)
    worker = totals.workers[0]
    assert (worker.batches, worker.samples, worker.busy_ns) == (19, 155, 19.375 * MS)
    assert figures_of(recorder).fetch == pytest.approx(0.001)


@pytest.mark.parametrize(("drop_last", "samples"), [(False, 1000), (True, 992)])
def test_the_last_batch_of_a_stream_may_be_short(tmp_path, drop_last, samples):
    path = tmp_path / "lines.txt"
    path.write_text("a line\n" * 1000)
    loader = DataLoader(read_text(path, block_bytes=100), batch_size=32, drop_last=drop_last)
    for _ in loader:
        pass
    assert loader.stats()["samples"] == samples
