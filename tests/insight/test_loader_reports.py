"""Loaders of every kind tell where their time goes. Sleeps are the bottleneck, by five times and more."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from headrace import DataLoader, IterableDataset, read_text
from headrace.testing import DyingDataset, HandDrivenEngine, SlowDataset
from tests.engines.jobs import start_helpers_of_multiprocessing

ENGINES = {
    "inline": {},
    "threads": {"num_workers": 2, "engine": "threads"},
    "processes": {"num_workers": 2, "multiprocessing_context": "fork"},
}


@pytest.fixture(autouse=True, scope="module")
def _helpers_of_multiprocessing():
    start_helpers_of_multiprocessing()


@pytest.fixture(params=ENGINES)
def engine(request):
    return ENGINES[request.param]


def run(loader, step_s=0.0):
    for _ in loader:
        if step_s:
            time.sleep(step_s)


def test_counts_are_exact(engine):
    with DataLoader(SlowDataset(range(46), 0.001), batch_size=4, output="numpy", **engine) as loader:
        run(loader)
        run(loader)
        stats = loader.stats()
    assert (stats["epochs"], stats["batches"], stats["samples"], stats["restarts"]) == (2, 24, 92, 0)
    assert stats["bytes_per_batch"] == pytest.approx(32, rel=0.5)
    assert stats["num_workers"] == engine.get("num_workers", 0)
    assert sum(worker["batches"] for worker in stats["workers"]) == 24
    assert stats["batch_seconds"]["fetch"] >= 0.003
    assert json.loads(json.dumps(stats)) == stats


def test_one_epoch_is_told_apart(engine):
    loader = DataLoader(range(40), batch_size=4, output="numpy", **engine)
    run(loader)
    run(loader)
    assert loader.stats(epoch=1)["batches"] == 10
    with pytest.raises(ValueError, match="Nothing is known of epoch 7"):
        loader.stats(epoch=7)


def test_single_samples_are_timed_and_named(engine):
    slow = SlowDataset(range(20), lambda index: 0.5 if index == 13 else 0.001)
    with DataLoader(slow, batch_size=None, output="numpy", **engine) as loader:
        run(loader)
        stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (20, 20)
    assert stats["slowest_samples"][0]["index"] == 13


class SlowNumbers(IterableDataset):
    def __iter__(self):
        for i in range(24):
            time.sleep(0.002)
            yield i


def test_streams_of_your_own_are_timed():
    loader = DataLoader(SlowNumbers(), batch_size=4, output="numpy")
    run(loader)
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (6, 24)
    assert stats["batch_seconds"]["fetch"] > 0.006
    assert stats["slowest_samples"][0]["index"] is None


def test_streams_are_timed(tmp_path, engine):
    (tmp_path / "lines.txt").write_text("".join(f"line {i}\n" for i in range(103)))
    stream = read_text(tmp_path / "lines.txt").map(slowly)
    with DataLoader(stream, batch_size=10, **engine) as loader:
        run(loader)
        stats = loader.stats()
        loader.timeline(tmp_path / "timeline.html")
    assert (stats["batches"], stats["samples"]) == (11, 103)
    assert list(stats["stages"]) == ["read", "map", "collate", "send"]
    assert stats["stages"]["map"] > 0.005
    assert sum(worker["batches"] for worker in stats["workers"]) == 11
    assert sum(worker["samples"] for worker in stats["workers"]) == 103
    assert "window 0" in (tmp_path / "timeline.html").read_text()


def slowly(line):
    time.sleep(0.001)
    return line


def test_a_slow_dataset_is_found(engine):
    with DataLoader(SlowDataset(range(160), 0.01), batch_size=2, output="numpy", **engine) as loader:
        run(loader, step_s=0.002)
        report = loader.report()
    assert report.bottleneck == "fetch"
    assert "Fetching samples is the bottleneck" in str(report)
    assert "workers would hide it" in report.verdict


def slow_collate(samples):
    time.sleep(0.02)
    return samples


def test_a_slow_collate_fn_is_found(engine):
    with DataLoader(range(160), batch_size=2, collate_fn=slow_collate, **engine) as loader:
        run(loader, step_s=0.002)
        assert loader.report().bottleneck == "collate"


def test_a_slow_model_is_found(engine):
    with DataLoader(range(48), batch_size=4, output="numpy", persistent_workers=bool(engine), **engine) as loader:
        run(loader, step_s=0.06)
        run(loader, step_s=0.06)  # with workers that run: on a busy machine, starting them takes as long as an epoch
        assert loader.report(epoch=1).bottleneck == "hidden"


def test_stragglers_are_found_and_named():
    slow = SlowDataset(range(240), lambda index: 0.2 if index == 123 else 0.0)
    with DataLoader(slow, batch_size=4, output="numpy", **ENGINES["processes"]) as loader:
        run(loader, step_s=0.005)
        report = loader.report()
    assert report.bottleneck == "stragglers"
    assert "The slowest samples: 123 (" in report.verdict
    assert report.stats["slowest_samples"][0]["index"] == 123


def test_in_the_middle_of_an_epoch(engine):
    with DataLoader(range(100), batch_size=2, output="numpy", **engine) as loader:
        batches = iter(loader)
        assert loader.report().bottleneck == "too few"
        for _ in range(7):
            next(batches)
        assert loader.stats()["batches"] == 7


def test_memory_is_told_of_processes_that_run():
    with DataLoader(
        range(100), batch_size=2, output="numpy", persistent_workers=True, **ENGINES["processes"]
    ) as loader:
        run(loader)
        workers = loader.stats(memory=True)["workers"]
        assert "rss" in str(loader.report(memory=True))
    if Path("/proc/self/smaps_rollup").exists():
        assert all(worker["rss"] >= worker["pss"] > 2**20 for worker in workers)
    assert {worker["rss"] for worker in loader.stats(memory=True)["workers"]} == {None}


def test_persistent_workers_are_timed_in_every_epoch():
    with DataLoader(range(20), batch_size=2, output="numpy", persistent_workers=True, **ENGINES["processes"]) as loader:
        for _ in range(3):
            run(loader)
        assert loader.stats()["batches"] == 30
        assert {work.epoch for work in loader._recorder.work} == {0, 1, 2}


def test_a_worker_that_is_replaced_is_counted(tmp_path):
    dying = DyingDataset(range(20), {7: "kill"}, once_in=tmp_path)
    with DataLoader(dying, batch_size=2, on_worker_death="restart", output="numpy", **ENGINES["processes"]) as loader:
        with pytest.warns(UserWarning, match="Another one takes its place"):
            run(loader)
        assert loader.stats()["restarts"] == 1
        assert loader.stats()["batches"] == 10


def test_a_custom_engine_is_timed():
    loader = DataLoader(range(12), batch_size=2, engine=HandDrivenEngine(choose=max), output="numpy")
    run(loader)
    assert loader.stats()["batches"] == 6
    assert len(loader._recorder.work) == 6
