"""The picture of workers and a model."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import DataLoader, MissingExtraError
from headrace.insight import plot
from headrace.insight.plot import plot_timings
from headrace.testing import SlowDataset


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def rows(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_has_a_row_per_worker_and_a_box_per_sample(tmp_path, suffix):
    """M1.7."""
    pytest.importorskip("matplotlib")
    # Slow enough that a busy machine makes no box too narrow for its number.
    loader = DataLoader(SlowDataset(range(17), 0.06), batch_size=4, num_workers=2, engine="threads", output="numpy")
    axes = plot_timings(loader, model_time=0.12, n_batches=4, path=tmp_path / f"timings.{suffix}")
    assert rows(axes) == ["worker 0", "worker 1", "model"]
    assert set(map(str, range(16))) <= set(texts(axes))
    assert axes.get_title(loc="left").startswith("the model waits")
    content = (tmp_path / f"timings.{suffix}").read_bytes()
    assert b"PNG" in content[:8] if suffix == "png" else b"<svg" in content[:2000]


def test_without_workers_loading_has_a_row_of_its_own(tmp_path):
    pytest.importorskip("matplotlib")
    used = []
    loader = DataLoader(SlowDataset(range(8), 0.005), batch_size=2, output="numpy")
    axes = plot_timings(loader, n_batches=3, model=used.append, path=tmp_path / "timings.svg")
    assert rows(axes) == ["loading", "model"]
    assert len(used) == 3


def test_of_other_loaders_waiting_and_steps_are_drawn(tmp_path):
    figure = pytest.importorskip("matplotlib.figure")
    axes = figure.Figure().subplots()
    assert plot_timings(iter([1, 2, 3]), 0.01, 5, ax=axes) is axes
    assert rows(axes) == ["model"]
    assert len([collection for collection in axes.collections if collection.get_paths()]) == 6


def test_what_has_run_is_drawn_without_running_again(tmp_path):
    pytest.importorskip("matplotlib")
    dataset = SlowDataset(range(12), 0.005)
    loader = DataLoader(dataset, batch_size=2, output="numpy")
    with pytest.raises(ValueError, match="Iterate it first"):
        plot_timings(loader, recorded=True)
    list(loader)
    axes = plot_timings(loader, n_batches=3, path=tmp_path / "timings.svg", recorded=True)
    assert "in the whole run" in axes.get_title(loc="left")
    assert loader.stats()["epochs"] == 1
    assert {"10", "11"} <= {text for text in texts(axes) if text.isdecimal()}


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_legend_says_what_the_colours_mean(tmp_path):
    pytest.importorskip("matplotlib")
    batch, collating, waiting = "a batch: its samples, the step on it", "collating, sending", "waiting"
    loader = DataLoader(range(6), batch_size=2, output="numpy")
    axes = plot_timings(loader, 0, 2, path=tmp_path / "timings.svg")
    assert legend(axes) == [batch, collating, waiting]
    assert legend(plot_timings([1, 2], 0, 2, path=tmp_path / "timings.svg")) == ["a step", waiting]
    plot._explain(axes, has_work=True, has_unused=True)
    assert legend(axes) == [batch, collating, "loaded ahead, not used", waiting]


def test_boxes_keep_their_colour_however_thin_they_are(tmp_path):
    """A white row would be seen where a hundred boxes had white edges."""
    figure = pytest.importorskip("matplotlib.figure")
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    canvas = agg.FigureCanvasAgg(figure.Figure(figsize=(4, 1), dpi=100))
    axes = canvas.figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, 1e-6), ylim=(-0.2, 0.2))
    drawing = plot._Drawing(axes, 0, 1000)
    for i in range(0, 1000, 2):
        drawing.box(0, i, i + 2, "#4c7edb")
    canvas.draw()
    reds = np.asarray(canvas.buffer_rgba())[..., 0]
    assert abs(reds.mean() - 0x4C) < 8


def test_wrong_numbers_are_named():
    with pytest.raises(ValueError, match="n_batches must be at least 1, got 0"):
        plot_timings([1], n_batches=0)
    with pytest.raises(ValueError, match="model_time must not be negative, got -1"):
        plot_timings([1], model_time=-1)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(plot, "is_installed", lambda _: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[plot\]'"):
        plot_timings([1])
