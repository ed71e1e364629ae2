"""`headrace bench` measures both loaders on each workload; the figures themselves are the machine's business."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer")
pytest.importorskip("torch")

from typer.testing import CliRunner

from headrace.cli import torch_bench
from headrace.cli.app import app
from headrace.cli.output import plot_ratios, text_bars
from headrace.cli.torch_bench import Effort, Made, Workload, workloads


@pytest.fixture
def one_small_workload(monkeypatch):
    monkeypatch.setattr(torch_bench, "QUICK", Effort(1, 0.01))
    workload = Workload("numbers", lambda: Made(lambda index: index), batch_size=4)
    monkeypatch.setattr(torch_bench, "workloads", lambda: iter([workload]))


def test_json_has_a_row_for_each_workload_and_number_of_workers(one_small_workload):
    result = CliRunner().invoke(app, ["bench", "--quick", "--json"])
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [(row["workload"], row["workers"]) for row in rows] == [("numbers", 0), ("numbers", 2)]
    assert all(row["torch"] > 0 and row["headrace"] > 0 and row["ratio"] > 0 for row in rows)


def test_a_table_and_bars_where_nothing_can_draw(one_small_workload, tmp_path, monkeypatch):
    monkeypatch.setattr(torch_bench, "is_installed", lambda name: name != "matplotlib")
    result = CliRunner().invoke(app, ["bench", "--quick", "--plot", str(tmp_path / "bench.png")])
    assert result.exit_code == 0, result.stderr
    assert "numbers, 2 workers" in result.stdout
    assert "█" in result.stdout
    assert not (tmp_path / "bench.png").exists()


def test_the_longest_bar_is_of_the_largest_ratio():
    first, second = text_bars(["a", "long"], [1.0, 4.0]).splitlines()
    assert (first.count("█"), second.count("█")) == (10, 40)
    assert first.index("█") == second.index("█")


def test_the_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    plot_ratios(["a", "b"], [0.5, 40.0], tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_every_workload_gives_samples():
    for workload in workloads():
        dataset = workload.make()
        assert dataset[0] is not None
        assert len(dataset) > 1000 * workload.batch_size


def test_a_plot_without_a_folder_is_told_in_one_line():
    result = CliRunner().invoke(app, ["bench", "--plot", "nowhere/bench.png"])
    assert result.exit_code == 2
    assert "--plot needs a folder that exists" in result.stderr
