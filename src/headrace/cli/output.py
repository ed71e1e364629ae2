"""What commands print and draw: results on stdout, everything else on stderr, errors in one line, plots in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from headrace.base.optional import import_extra

out = Console()
err = Console(stderr=True)

WRONG_INPUT = 2


def fail(reason: str, code: int = WRONG_INPUT) -> NoReturn:
    """End the command with one line on stderr.

    Raises:
        Exit: always.
    """
    err.print(f"headrace: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def progress_bar() -> Progress:
    """A bar on stderr, gone when it is done. Only `advance` draws it, no thread: threads do not survive a fork."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=err, transient=True, auto_refresh=False)


def advance(progress: Progress, task: TaskID, what: str, done: float) -> None:
    """Draw how far a task of a bar has come."""
    progress.update(task, description=what, completed=done, refresh=True)


_BAR_WIDTH = 40
_BLUE, _GREY = "#2a78b8", "#444444"


@contextmanager
def _axes(path: Path, width: float, height: float) -> Iterator[Any]:
    """Axes of a picture that is written to a file at the end.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    figure_class: Any = import_extra("matplotlib.figure", "plot", "A picture").Figure
    figure = figure_class(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    yield axes
    figure.savefig(path, dpi=150)


def plot_ratios(labels: Sequence[str], ratios: Sequence[float], path: Path) -> None:
    """A bar for each ratio, from 1 on, to the right where it is larger."""
    with _axes(path, 9, 0.6 + 0.45 * len(labels)) as axes:
        axes.set_xscale("log")
        bars = axes.barh(labels, [ratio - 1 for ratio in ratios], left=1, color=_BLUE)
        axes.bar_label(bars, [f"{ratio:.1f} x" for ratio in ratios], padding=3)
        axes.axvline(1.0, color=_GREY, linewidth=1)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.invert_yaxis()
        axes.set_xlabel("samples per second, as a multiple of torch's")
        axes.margins(x=0.1)


def plot_losses(losses: Sequence[float], killed_at: int, stopped_at: int, path: Path) -> None:
    """The curve of a training, with the steps at which the second run of it was disturbed."""
    with _axes(path, 8, 4) as axes:
        axes.plot(losses, color=_BLUE, label="both runs")
        axes.axvline(killed_at, color="#c0392b", linewidth=1, linestyle=":", label="a worker is killed")
        axes.axvline(stopped_at, color=_GREY, linewidth=1, linestyle="--", label="stopped, and resumed")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.legend(frameon=False)


def text_bars(labels: Sequence[str], ratios: Sequence[float]) -> str:
    """A line for each ratio."""
    width, largest = max(map(len, labels)), max(ratios)
    return "\n".join(
        f"{label:<{width}}  {'█' * max(1, round(_BAR_WIDTH * ratio / largest))} {ratio:.1f} x"
        for label, ratio in zip(labels, ratios, strict=True)
    )
