"""The verdict on loaders whose bottleneck is known, from figures that a test decides."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from headrace.insight.figures import Figures, Setup
from headrace.insight.verdict import judge

TWO = Setup("processes", workers=2, cores=2)


COUNTS = {"turns", "epochs", "ended", "batches", "n_bytes", "seconds", "ahead", "samples"}
SHARES = {"cpu", "ready", "stalls", "waited"} | COUNTS


def figures(**known: float) -> Figures:
    """In milliseconds, except for counts and shares; what is no field is a stage, and `wait` that of every turn."""
    wait, pin, step = (known.get(name, 0) / 1000 for name in ("wait", "pin", "step"))
    late = wait + pin
    names = {field.name for field in fields(Figures)}
    plain = {name: value if name in SHARES else value / 1000 for name, value in known.items() if name in names}
    stages = {name: value / 1000 for name, value in known.items() if name not in names}
    counts = {"turns": 100, "epochs": 1, "ended": 1, "seconds": 60.0, "ready": 0.5}
    waited = {"late": late, "waited": late / (late + step) if late else 0.0}
    return Figures(**{**counts, **waited, **plain}, stages=stages)  # type: ignore[arg-type]


def test_too_few_batches():
    verdict = judge(figures(turns=3, wait=9, step=1), TWO)
    assert verdict.kind == "too few"
    assert str(verdict) == "Too few batches to tell: 3 after the first of an epoch."


def test_slow_fetching():
    verdict = judge(
        figures(wait=4.1, step=5.9, fetch=17.5, collate=1, send=0.5, cpu=0.9), Setup("processes", 2, cores=8)
    )
    assert verdict.kind == "fetch"
    assert str(verdict) == (
        "The model waited 41 % of the time. Fetching samples is the bottleneck (17.5 ms of 19 ms per batch). "
        "4 workers would hide it (this machine has 8 cores)."
    )


def test_more_workers_than_cores_help_only_those_that_wait():
    slow = {"wait": 5, "step": 5, "fetch": 30}
    computing = judge(figures(**slow, cpu=0.95), TWO)
    waiting = judge(figures(**slow, cpu=0.04), TWO)
    assert "6 workers would hide it, but this machine has 2 cores" in str(computing)
    assert "6 workers would hide it: they compute only 4 % of that time" in str(waiting)
    alone = judge(figures(**slow, cpu=0.04), Setup())
    assert "6 workers would hide it: loading computes only 4 % of that time" in str(alone)


def test_slow_collating():
    verdict = judge(figures(wait=5, step=5, fetch=2, collate=18, send=1, cpu=0.9), Setup("processes", 2, cores=16))
    assert verdict.kind == "collate"
    assert "Collating samples into batches is the bottleneck (18 ms of 21 ms per batch). 5 workers" in str(verdict)


def test_huge_batches():
    packing = judge(figures(wait=5, step=5, fetch=2, collate=3, send=20, n_bytes=3e8, cpu=0.9), TWO)
    assert packing.kind == "send"
    assert "Sending batches of 300 MB is the bottleneck (20 ms of 25 ms per batch)" in str(packing)
    receiving = judge(figures(wait=10, step=5, receive=9, fetch=2, send=2, n_bytes=3e8), TWO)
    assert receiving.kind == "receive"
    assert "Receiving batches of 300 MB is the bottleneck (9 ms of 10 ms per batch)" in str(receiving)


def test_pinning_in_the_loop():
    verdict = judge(figures(wait=1, pin=6, step=5, fetch=1), Setup())
    assert verdict.kind == "pin"
    assert "(6 ms of 7 ms per batch)" in str(verdict)


def test_a_slow_model():
    verdict = judge(figures(wait=0.1, step=20, fetch=7), Setup("processes", workers=4, cores=8))
    assert verdict.kind == "hidden"
    assert str(verdict) == (
        "The model waited 0.5 % of the time. Loading is hidden behind the model: a batch takes 7 ms to load, and the "
        "model's step 20 ms, on 4 workers. 1 worker would do."
    )
    assert "would do" not in str(judge(figures(wait=0.1, step=20, fetch=35), TWO))


def test_a_slow_model_without_workers():
    verdict = judge(figures(wait=0.1, step=20, fetch=0.1), Setup())
    assert verdict.kind == "hidden"
    assert "Loading is no bottleneck" in str(verdict)


def test_stragglers():
    slow = figures(wait=5, step=5, fetch=7, stalls=0.95)
    verdict = judge(slow, TWO, ["350 (150 ms)", "150 (149 ms)"])
    assert verdict.kind == "stragglers"
    assert "the worst tenth makes 95 % of the waiting" in str(verdict)
    assert "The slowest samples: 350 (150 ms), 150 (149 ms)." in str(verdict)
    assert "in_order=False" in str(verdict)
    assert "though 2 workers are quick enough" in str(verdict)
    assert "in_order" not in str(judge(slow, Setup("processes", 2, in_order=False)))
    assert "though 1 worker is quick enough" in str(
        judge(figures(wait=5, step=8, fetch=7, stalls=0.95), Setup("threads", 1))
    )


def test_unequal_waiting_is_no_excuse_for_too_few_workers():
    assert judge(figures(wait=5, step=5, fetch=17, stalls=0.95), TWO).kind == "fetch"


def test_short_epochs():
    short = figures(wait=1, step=5, fetch=2, start=750, starting=700, seconds=1.0, waited=0.8)
    verdict = judge(short, TWO)
    assert verdict.kind == "start"
    assert str(verdict).startswith(
        "The model waited 80 % of the time. Starting and stopping took 70 % of all time: 700 ms until"
    )
    assert "persistent_workers=True" in str(verdict)
    assert "persistent_workers" not in str(judge(short, Setup("processes", 2, persistent=True)))


def test_in_its_first_epoch_a_loader_is_not_blamed_for_its_start():
    begun = figures(wait=0.01, step=5, fetch=2, start=700, starting=690, seconds=1.0, ended=0, waited=0.7)
    verdict = judge(begun, TWO)
    assert verdict.kind == "hidden"
    assert str(verdict).startswith(
        "The model waited 70 % of the time, nearly all of it for the first batch of an epoch (700 ms). After that, "
        "loading is hidden behind the model"
    )


def test_work_on_the_first_batch_is_no_start():
    slow = figures(wait=0.01, step=2, read=0.1, map=8, start=1600, starting=20, seconds=1.9, waited=0.84)
    for ended in (0, 1):
        verdict = judge(replace(slow, ended=ended), Setup("processes", 2, cores=2, kind="stream"))
        assert verdict.kind == "map"
        assert str(verdict) == (
            "The model waited 84 % of the time, nearly all of it for the first batch of an epoch (1.6 s). map() is the "
            "bottleneck (8 ms of 8.1 ms per batch). After that, 2 workers keep up."
        )


def test_stages_are_named_in_the_words_of_the_user():
    slow = figures(wait=9, step=1, read=30, collate=1, cpu=0.1)
    assert "Reading the stream is the bottleneck (30 ms of 31 ms" in str(judge(slow, Setup(kind="stream")))
    assert "Reading the sequences is the bottleneck" in str(judge(slow, Setup(kind="multistream")))
    by_row = judge(figures(wait=9, step=1, read=1, flat_map=30, cpu=0.9), Setup(kind="stream", cores=64))
    assert by_row.kind == "flat_map"
    assert "flat_map() is the bottleneck" in str(by_row)
    assert "map_batches() does with whole columns what flat_map() does row by row" in str(by_row)


def test_a_stream_that_comes_in_blocks_has_no_stragglers():
    verdict = judge(figures(wait=5, step=5, read=7, stalls=0.95), replace(TWO, kind="stream"))
    assert verdict.kind == "stragglers"  # of batches that are known to have been late
    windows = replace(figures(wait=5, step=5, read=7, stalls=0.95), ready=None)
    verdict = judge(windows, replace(TWO, kind="stream"))
    assert verdict.kind == "read"
    assert "smaller blocks are dealt out more evenly" in str(verdict)


def test_a_loop_without_a_model():
    verdict = judge(figures(wait=5, step=0.001, fetch=9, collate=1), TWO)
    assert verdict.kind == "loading only"
    assert "only loading is measured, on 2 workers. Fetching samples is the bottleneck" in str(verdict)


def test_threads_that_wait_for_the_gil():
    verdict = judge(figures(wait=5, step=5, fetch=9, cpu=0.9), Setup("threads", workers=2, cores=4))
    assert 'engine="processes"' in str(verdict)


@pytest.mark.parametrize("setup", [Setup(), TWO])
def test_nothing_measured_is_no_error(setup):
    assert judge(Figures(turns=100), setup).kind == "hidden"
    assert judge(Figures(turns=100, waited=1.0, late=1.0), setup).kind == "loading only"
