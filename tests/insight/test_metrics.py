"""Figures for those who collect them: trackers, Prometheus, OpenTelemetry, torch's profiler, and `headrace top`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import headrace
from headrace import DataLoader, IterableDataset, MultiStreamDataLoader, Stream
from headrace.insight import watching
from headrace.insight.live import live_loaders, totals_now
from tests.needs import needs_torch


class Ten(IterableDataset[int]):
    def __iter__(self):
        worker = headrace.get_worker_info()
        return iter(range(10) if worker is None else range(100 * worker.id, 100 * worker.id + 10))


def rows(start):
    return range(start, start + 10)


LOADERS = {
    "map": lambda **more: DataLoader(range(40), 4, output="numpy", **more),
    "seeded": lambda **more: DataLoader(range(40), 4, shuffle=True, seed=1, output="numpy", **more),
    "iterable": lambda **more: DataLoader(Ten(), 4, output="numpy", **more),
    "stream": lambda **more: DataLoader(Stream.from_blocks([0, 10, 20], rows), 4, output="numpy", **more),
    "multistream": lambda **more: MultiStreamDataLoader(
        [range(20), range(20)], 2, assign="partition", cycle=False, output="numpy", **more
    ),
}
ENGINES = [{}, {"num_workers": 2}, {"num_workers": 2, "engine": "threads"}]


@pytest.mark.parametrize("engine", ENGINES, ids=["inline", "processes", "threads"])
@pytest.mark.parametrize("kind", LOADERS)
def test_metrics_are_plain_numbers_of_every_kind_of_loader(kind, engine):
    with LOADERS[kind](**engine) as loader:
        n = len(list(loader))
        found = loader.metrics("data/")
        assert found["data/batches"] == n
        assert found["data/samples"] == loader.stats()["samples"] > 0
        assert found["data/batches_per_second"] > 0
        assert 0 <= found["data/wait_share"] <= 1
        assert all(isinstance(value, (int, float)) and name.startswith("data/") for name, value in found.items())
        json.dumps(found)
        again = loader.metrics("data/")  # nothing has come since
        assert (again["data/batches"], again["data/batches_per_second"]) == (n, 0)
        [live] = [one for one in live_loaders() if one.recorder is loader._recorder]
        assert totals_now(live.recorder).batches == n


def scraped(url: str) -> dict[tuple[str, str], float]:
    parser = pytest.importorskip("prometheus_client.parser")
    with urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = parser.text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, sample.labels["loader"]): sample.value
            for family in families
            for sample in family.samples
            if "worker" not in sample.labels
        }


def test_prometheus_reads_the_endpoint():
    loader = LOADERS["map"](num_workers=2)
    with headrace.serve_metrics(0) as server, loader:
        batches = iter(loader)
        next(batches)
        label = str(loader._recorder.number)
        assert scraped(server.url)["headrace_batches_total", label] >= 1  # in the midst of an epoch
        assert len(list(batches)) == 9
        found = scraped(server.url)
        assert found["headrace_batches_total", label] == 10
        assert found["headrace_samples_total", label] == 40
        assert found["headrace_wait_seconds_total", label] <= found["headrace_loop_seconds_total", label]
        with pytest.raises(HTTPError) as caught:
            urlopen(f"http://127.0.0.1:{server.port}/elsewhere", timeout=10)
        assert caught.value.code == 404
        caught.value.close()


def test_a_forked_process_does_not_keep_the_port():
    with headrace.serve_metrics(0) as server:
        port = server.port
        with LOADERS["map"](num_workers=2, persistent_workers=True, multiprocessing_context="fork") as loader:
            next(iter(loader))
            server.close()
            headrace.serve_metrics(port).close()  # while workers run


SDK = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
{first}
from headrace import DataLoader
loader = DataLoader(range(40), batch_size=4, num_workers=2, output="numpy")
assert len(list(loader)) == 10
{later}
found = {{}}
for resource in reader.get_metrics_data().resource_metrics:
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            for point in metric.data.data_points:
                found.setdefault(metric.name, []).append((dict(point.attributes), point.value))
assert found["headrace.batches"] == [({{"loader": "0", "rank": "0", "kind": "map"}}, 10)], found
assert found["headrace.samples"][0][1] == 40
assert len(found["headrace.worker.busy"]) == 2
loader.close()
"""
PROVIDE = "metrics.set_meter_provider(MeterProvider([reader]))"


@pytest.mark.parametrize("when", ["first", "later"])
def test_opentelemetry_observes_loaders_whenever_its_sdk_is_set_up(when):
    pytest.importorskip("opentelemetry.sdk")
    script = SDK.format(**{"first": "", "later": "", when: PROVIDE})
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_without_opentelemetry_nothing_of_it_is_imported():
    script = """
import sys, headrace
list(headrace.DataLoader(range(4), output="numpy"))
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@needs_torch
@pytest.mark.parametrize("kind", LOADERS)
def test_ranges_are_in_the_trace_only_while_a_profiler_records(kind):
    from torch.profiler import ProfilerActivity, profile

    with LOADERS[kind]() as loader:
        batches = iter(loader)
        next(batches)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            n = sum(1 for _ in batches)
        names = [event.name for event in profiler.events()]
        assert names.count("enumerate(DataLoader)#headrace.__next__") == n + 1  # and one to find the end


# headrace top


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return watching.open_folder()


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_tells_about_itself_while_somebody_watches(kind, folder):
    with LOADERS[kind]() as loader:
        list(loader)
        [line] = watching.read_lines()
        assert line["pid"] == os.getpid()
        assert line["text"] == repr(loader)
        assert line["batches"] >= 1
    watching.close_folder()
    assert not folder.exists()


def test_nothing_is_written_where_nobody_watches_or_somebody_else_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    list(LOADERS["map"]())
    assert list(tmp_path.iterdir()) == []
    watching.watch_folder().mkdir(mode=0o777)
    watching.watch_folder().chmod(0o777)
    list(LOADERS["map"]())
    assert list(watching.watch_folder().iterdir()) == []
    with pytest.raises(PermissionError, match="others may write"):
        watching.open_folder()


def test_what_processes_left_behind_is_cleared(folder):
    list(LOADERS["map"]())
    [path] = folder.iterdir()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(30)
    line = json.loads(path.read_text())
    path.unlink()
    (folder / "1-0.json").write_text(json.dumps({**line, "pid": ended.pid}))
    (folder / "2-0.json").write_text("{")  # half written
    assert watching.read_lines() == []


LOOP = """
import time
from headrace import DataLoader
loader = DataLoader(range(10**6), batch_size=4, output="numpy")
for batch in loader:
    time.sleep(0.01)
"""


def test_top_shows_the_loaders_of_other_processes(tmp_path):
    pytest.importorskip("typer")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    (tmp_path / "train_it.py").write_text(LOOP)
    training = subprocess.Popen([sys.executable, str(tmp_path / "train_it.py")], env=environment)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            command = [sys.executable, "-m", "headrace", "top"]
            done = subprocess.run([*command, "--once"], env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            if "train_it.py" in done.stdout:
                break
        assert str(training.pid) in done.stdout
        told = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, timeout=60)
        [line] = json.loads(told.stdout)
        assert line["script"] == "train_it.py"
        assert 0 < line["samples_per_second"] <= 400  # as the loop lets it
        assert [path.name for path in tmp_path.iterdir()] == ["train_it.py"]  # the folder is gone
    finally:
        training.kill()
        training.wait()
