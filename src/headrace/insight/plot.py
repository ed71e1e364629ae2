"""Draws what workers and a model do at the same time: boxes for samples and steps, over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from headrace.base.errors import MissingExtraError
from headrace.base.optional import import_extra, is_installed
from headrace.insight.recorder import Recorder, Turn, Work
from headrace.insight.verdict import as_row

if TYPE_CHECKING:
    import os

_BATCHES = ("#4c7edb", "#e08a3c", "#2aa5a0", "#8d6fd1", "#c85f8a", "#7a9a3a", "#b08d57", "#5b7083")
_WAIT, _COLLATE, _INK, _LINE = "#e0403a", "#2f3b48", "#1b2430", "#dfe4ea"
_HEIGHT = 0.62  # of a box, where rows are 1 apart
_EDGE_POINTS = 0.8
_THIN_POINTS = 4.0  # a gap beside a narrower box would leave little of its colour
_POINTS_PER_LETTER = 5.5
_BELOW_TICKS = 2.0  # letters of the legend's size
_S = 1e-9


def plot_timings(
    loader: Iterable[Any],
    model_time: float = 0.2,
    n_batches: int = 4,
    *,
    model: Callable[[Any], Any] | None = None,
    ax: Any = None,
    path: str | os.PathLike[str] | None = None,
    recorded: bool = False,
) -> Any:
    """Run a few batches, and draw a row for each worker and one for the model.

    In a worker's row there is a box for each sample, or for each batch where samples come as a whole; those of a batch
    have the colour that its step has in the model's row. Where the model waits, its row is red. A legend says so.

    Args:
        loader: a DataLoader. Of others, only waiting and steps are known.
        model_time: seconds that the model's step takes.
        n_batches: how many to run.
        model: the step itself, called with each batch, instead of `model_time`.
        ax: matplotlib's axes to draw into; if None, new ones.
        path: a file to save the picture in: PNG, SVG, or PDF, by its name.
        recorded: run nothing, and draw the latest batches of a DataLoader that has run: the same run as in its
            `timeline` and `report`.

    Returns:
        The axes.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ValueError: `n_batches` is less than 1, or `model_time` negative.

    Examples:
        >>> from headrace import DataLoader
        >>> loader = DataLoader(range(12), batch_size=4)
        >>> plot_timings(loader, model_time=0.2, n_batches=3, path="timings.png")  # doctest: +SKIP
    """
    if n_batches < 1:
        raise ValueError(f"n_batches must be at least 1, got {n_batches}.")
    if model_time < 0:
        raise ValueError(f"model_time must not be negative, got {model_time}.")
    if not is_installed("matplotlib"):
        raise MissingExtraError(
            "plot_timings draws with matplotlib, which is not installed. Run: pip install 'headrace[plot]'"
        )
    begun, note = perf_counter_ns(), ""
    recorder = getattr(loader, "_recorder", None)
    if recorded:
        if not isinstance(recorder, Recorder) or not recorder.turns:
            raise ValueError("recorded=True needs a DataLoader that has given some batches. Iterate it first.")
        turns = _worked_turns(recorder, n_batches)
        begun, totals = turns[0].asked, recorder.totals()
        note = f"{totals.waited_ns / max(totals.elapsed_ns, 1):.0%} in the whole run"
    else:
        turns = _run(loader, n_batches, model or (lambda _: time.sleep(model_time)))
    ended = turns[-1].done if turns else begun
    work = [made for made in recorder.work if made.span.sent >= begun] if isinstance(recorder, Recorder) else []
    work = [made for made in work if not recorded or made.span.begun <= ended]
    axes = _new_axes(len({made.worker for made in work}), is_file=path is not None) if ax is None else ax
    _draw(axes, turns, work, getattr(loader, "num_workers", 0), note)
    if path is not None:
        axes.figure.savefig(path, dpi=150, bbox_inches="tight")
    return axes


def _worked_turns(recorder: Recorder, n: int) -> list[Turn]:
    """The latest turns of the loop during which workers worked; they may have been done with all long before."""
    turns, latest = list(recorder.turns), max((made.span.sent for made in recorder.work), default=0)
    end = next((i for i in range(len(turns), 0, -1) if turns[i - 1].asked <= latest), 0)
    return turns[max(end - n, 0) :][:n]


def _run(loader: Iterable[Any], n_batches: int, step: Callable[[Any], Any]) -> list[Turn]:
    turns = []
    batches = iter(loader)
    asked = perf_counter_ns()
    for number, batch in enumerate(islice(batches, n_batches)):
        given = perf_counter_ns()
        step(batch)
        done = perf_counter_ns()
        turns.append(Turn(0, number, asked, given, given, done))
        asked = done
    close = getattr(batches, "close", None)
    if close is not None and not getattr(loader, "persistent_workers", False):
        close()
    return turns


def _new_axes(workers: int, *, is_file: bool) -> Any:
    size = (10, 1.2 + 0.55 * (workers + 1))
    if is_file:
        return import_extra("matplotlib.figure", "plot", "plot_timings").Figure(figsize=size).subplots()
    return import_extra("matplotlib.pyplot", "plot", "plot_timings").subplots(figsize=size)[1]


class _Drawing:
    """Boxes in rows, over the time from `start_ns` to `end_ns`."""

    def __init__(self, axes: Any, start_ns: int, end_ns: int) -> None:
        self._axes = axes
        self._start_ns = start_ns
        points = 72 * axes.figure.get_figwidth() * axes.get_position().width
        self._points_per_ns = points / max(end_ns - start_ns, 1)

    def box(self, row: int, begun: int, ended: int, colour: str, *labels: str) -> None:
        """Draw a box, with the first of the labels that has room in it."""
        points = max(ended - begun, 0) * self._points_per_ns
        gap = (2 * _EDGE_POINTS if points >= _THIN_POINTS else 0.0) / self._points_per_ns
        start, width = (begun - self._start_ns + gap / 2) * _S, (max(ended - begun, 0) - gap) * _S
        place = [(start, width)], (row - _HEIGHT / 2, _HEIGHT)
        line = min(points, _EDGE_POINTS)  # what took no time is not seen
        self._axes.broken_barh(*place, facecolors=colour, edgecolors=colour, linewidth=line)
        room = points / _POINTS_PER_LETTER - 1
        label = next((label for label in labels if len(label) <= room), "")
        self._axes.text(start + width / 2, row, label, ha="center", va="center", fontsize=8, color="white")

    def work(self, made: Work, row: int, *, is_used: bool) -> None:
        """Draw what a worker did for a batch, its samples if they were timed."""
        span, colour, collate = made.span, _colour(max(made.number, 0)), _COLLATE
        if not is_used:
            colour, collate = _pale(colour), _pale(collate)
        begun = span.begun
        collating = next((start for name, start, _ in made.stages() if name in ("collate", "send")), span.made)
        for key, ended in made.samples() or [(None, collating)]:
            self.box(row, begun, ended, colour, "" if key is None else str(key))
            begun = ended
        self.box(row, collating, span.sent, collate)

    def turn(self, turn: Turn, row: int) -> None:
        """Draw how the model waited, and its step."""
        self.box(row, turn.asked, turn.arrived, _WAIT, "wait")
        number = str(turn.number)
        self.box(row, turn.given, turn.done, _colour(turn.number), f"batch {number}", number)


def _draw(axes: Any, turns: list[Turn], work: list[Work], n_workers: int, note: str) -> None:
    start = min([turn.asked for turn in turns] + [made.span.begun for made in work], default=0)
    end = max([turn.done for turn in turns], default=start)
    drawing = _Drawing(axes, start, end)
    workers = sorted({made.worker for made in work})
    used = {-1, *(turn.number for turn in turns)}  # what was loaded ahead, and not used any more, is pale
    for made in work:
        drawing.work(made, workers.index(made.worker), is_used=made.number in used)
    for turn in turns:
        drawing.turn(turn, len(workers))
    rows = [as_row(number, n_workers) for number in workers] + ["model"]
    _dress(axes, rows, (end - start) * _S)
    _explain(axes, has_work=bool(work), has_unused=any(made.number not in used for made in work))
    waited, total = sum(turn.arrived - turn.asked for turn in turns), max(end - start, 1)
    text = f"the model waits {waited / total:.0%} of the time"
    axes.set_title(
        f"{text} in these {len(turns)} batches; {note}" if note else text, loc="left", fontsize=10, color=_INK
    )


def _dress(axes: Any, rows: list[str], seconds: float) -> None:
    axes.set_xlim(0, seconds * 1.01 or 1.0)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel("seconds", color=_INK, loc="left")  # beside it there is room for the legend
    axes.tick_params(length=0, colors=_INK)
    axes.grid(axis="x", color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _explain(axes: Any, *, has_work: bool, has_unused: bool) -> None:
    """Say in a legend, below, what the colours mean."""
    patch = import_extra("matplotlib.patches", "plot", "plot_timings").Patch
    side_by_side = import_extra("matplotlib.legend_handler", "plot", "plot_timings").HandlerTuple(ndivide=None, pad=0)
    batches = tuple(patch(color=colour, linewidth=0) for colour in _BATCHES[:3])
    meanings: list[tuple[Any, str]] = [(batches, "a batch: its samples, the step on it" if has_work else "a step")]
    if has_work:
        meanings.append((patch(color=_COLLATE, linewidth=0), "collating, sending"))
    if has_unused:
        meanings.append((patch(color=_pale(_colour(0)), linewidth=0), "loaded ahead, not used"))
    meanings.append((patch(color=_WAIT, linewidth=0), "waiting"))
    axes.legend(
        *zip(*meanings, strict=True),
        handler_map={tuple: side_by_side},
        loc="upper right",
        bbox_to_anchor=(1, 0),
        borderaxespad=_BELOW_TICKS,
        ncols=len(meanings),
        columnspacing=1.2,
        handlelength=1.4,
        frameon=False,
        fontsize=8,
        labelcolor=_INK,
    )


def _colour(number: int) -> str:
    return _BATCHES[number % len(_BATCHES)]


def _pale(colour: str) -> str:
    """The colour, half way to white; not translucent, for boxes overlap a little."""
    return "#" + "".join(f"{(int(colour[i : i + 2], 16) + 255) // 2:02x}" for i in (1, 3, 5))
