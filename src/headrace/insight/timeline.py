"""The timeline: as one HTML page that needs no server and no network, and as a trace for Perfetto and Chrome."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from headrace.insight.figures import Setup
from headrace.insight.recorder import Preparation, Recorder, Run, Turn, Work, plain_key
from headrace.insight.report import stats_of
from headrace.insight.verdict import as_bytes, as_count, as_percent, as_row, as_time, as_workers

_MOST_BOXES = 50_000  # samples
_PROCESS = 1
_LOOP, _PREPARING, _FIRST_WORKER = 0, 1, 2  # rows of a trace, from the top


class Timeline:
    """What `loader.timeline()` gives: a page. In a notebook, it shows itself.

    Attributes:
        html: the page, in one piece.
    """

    def __init__(self, html: str) -> None:
        self.html = html

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file.

        Raises:
            OSError: it cannot be written.
        """
        Path(path).write_text(self.html, encoding="utf-8")

    def __repr__(self) -> str:
        return f"<Timeline, {as_bytes(len(self.html))}: save(path) writes the page>"

    def _repr_html_(self) -> str:
        style = "width:100%;height:620px;border:0"
        return f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" style="{style}"></iframe>'


def timeline_page(recorder: Recorder, setup: Setup) -> str:
    """The page, with all that is in the recorder."""
    template = files("headrace.insight").joinpath("timeline.html").read_text(encoding="utf-8")
    data = json.dumps(timeline_data(recorder, setup), separators=(",", ":"))
    return template.replace("/*DATA*/", data.replace("<", "\\u003c"))


def timeline_data(recorder: Recorder, setup: Setup) -> dict[str, Any]:
    """What the page draws. Times are in nanoseconds, from the first one."""
    work, turns, prepared = list(recorder.work), list(recorder.turns), list(recorder.preparations)
    runs = _shown_runs(recorder)
    first = [made.span.begun for made in work] + [turn.asked for turn in turns] + [run.begun for run in runs]
    start = min(first, default=0)
    workers = sorted({made.worker for made in work})
    places = {} if recorder.nodes is None else recorder.nodes.places
    rows = [as_row(number, setup.workers, places.get(number)) for number in workers]
    pinning = len(rows)
    rows += ["pinning"] if prepared else []
    stats = stats_of(recorder, setup)
    boxes = _MOST_BOXES
    described = []
    for made in reversed(work):  # the latest ones in detail
        with_samples = len(made.span.ends) // 8 <= boxes
        boxes -= len(made.span.ends) // 8 if with_samples else 0
        described.append(_describe(made, workers.index(made.worker), start, with_samples=with_samples))
    return {
        "title": f"{stats['engine']}, {as_workers(setup.workers)}" if setup.workers else "no workers",
        "verdict": stats["verdict"],
        "workers": setup.workers,
        "facts": _facts(stats),
        "rows": [*rows, "training loop"],
        "stages": list(stats["stages"]),
        "work": described[::-1],
        "turns": [[turn.epoch, turn.number, *(at - start for at in turn[2:6])] for turn in turns],
        "waits": [
            [run.epoch, what, begun - start, ended - start] for run in runs for what, begun, ended in _waits(run)
        ],
        "epochs": [[run.epoch, run.begun - start] for run in runs],
        "replaced": [
            [workers.index(worker), at - start]
            for worker, at in recorder.replacements
            if worker in workers and at >= start
        ],
        "prepared": [
            [pinning, epoch, number, begun - start, ended - start] for epoch, number, begun, ended in prepared
        ],
    }


def _shown_runs(recorder: Recorder) -> list[Run]:
    """The epochs whose beginning is among what is kept."""
    first = [made.span.begun for made in recorder.work] + [turn.asked for turn in recorder.turns]
    since = min(first, default=0)
    return [run for run in recorder.runs if run.begun >= since or run.first_asked >= since]


def _waits(run: Run) -> Iterator[tuple[str, int, int]]:
    """When the loop waited without asking for a batch that it got: for the start, and for the end."""
    if run.is_ready > run.begun:
        yield "start", run.begun, run.is_ready
    if run.last_wait is not None and run.last_wait[1] > run.last_wait[0]:
        yield "end", *run.last_wait


def _describe(work: Work, row: int, start: int, *, with_samples: bool) -> dict[str, Any]:
    span = work.span
    what = work.keys if isinstance(work.keys, str) else None
    samples = work.samples() if with_samples else []
    keys: list[Any] = [key for key, _ in samples if key is not None]
    if not keys and what is None:
        keys = [plain_key(key) for key in work.keys]
    return {
        "at": [row, work.epoch, work.number, span.begun - start, span.sent - start, span.cpu],
        "stages": [[name, begun - start, ended - start] for name, begun, ended in work.stages()],
        "what": what,
        "count": work.n_samples,
        "keys": keys,
        "ends": [end - start for _, end in samples],
    }


def _facts(stats: dict[str, Any]) -> list[tuple[str, str, bool]]:
    facts = [
        ("of the time the model waited", as_percent(stats["waited"]), stats["waited"] >= 0.05),
        ("batches", as_count(stats["batches"]), False),
        ("samples/s", as_count(stats["samples_per_second"]), False),
        *((f"{name} per batch", as_time(seconds), False) for name, seconds in stats["stages"].items() if seconds),
        ("model's step", as_time(stats["batch_seconds"]["step"]), False),
    ]
    if stats["bytes_per_batch"]:
        facts.append(("per batch", as_bytes(stats["bytes_per_batch"]), False))
    if stats["num_workers"] and stats["ready"] is not None:
        facts.append(("ready when asked for", as_percent(stats["ready"]), False))
    return facts


def trace_of(recorder: Recorder, setup: Setup) -> dict[str, Any]:
    """The trace as JSON, in the Trace Event format: a row for the loop and for each worker."""
    events = [*_turns(recorder), *_preparations(recorder), *_works(recorder)]
    rows = sorted({event["tid"] for event in events})
    places = {} if recorder.nodes is None else recorder.nodes.places
    named = [_row(number, setup.workers, places.get(number - _FIRST_WORKER)) for number in rows]
    return {"traceEvents": [*named, *events, *_marks(recorder)], "displayTimeUnit": "ms"}


def _row(number: int, workers: int, place: str | None) -> dict[str, Any]:
    names = {_LOOP: "training loop", _PREPARING: "pinning"}
    name = names.get(number) or as_row(number - _FIRST_WORKER, workers, place)
    return {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": number, "args": {"name": name}}


def _turns(recorder: Recorder) -> Iterator[dict[str, Any]]:
    for run in _shown_runs(recorder):
        for what, begun, ended in _waits(run):
            yield _event(f"wait for {what}", _LOOP, begun, ended, {"epoch": run.epoch})
    for turn in recorder.turns:
        yield _event("wait", _LOOP, turn.asked, turn.arrived, _of(turn))
        if turn.given > turn.arrived:
            yield _event("pin", _LOOP, turn.arrived, turn.given, _of(turn))
        yield _event("step", _LOOP, turn.given, turn.done, _of(turn))


def _preparations(recorder: Recorder) -> Iterator[dict[str, Any]]:
    for preparation in recorder.preparations:
        yield _event("prepare", _PREPARING, preparation.begun, preparation.ended, _of(preparation))


def _works(recorder: Recorder) -> Iterator[dict[str, Any]]:
    for work in recorder.work:
        row, span = _FIRST_WORKER + work.worker, work.span
        name = work.keys if isinstance(work.keys, str) else "batch"
        yield _event(name, row, span.begun, span.sent, _of(work))
        for stage, begun, ended in work.stages():
            if ended > begun:
                yield _event(stage, row, begun, ended, _of(work))
        begun = span.begun
        for key, ended in work.samples():
            yield _event("sample" if key is None else f"sample {key}", row, begun, ended, _of(work))
            begun = ended


def _marks(recorder: Recorder) -> Iterator[dict[str, Any]]:
    """Epochs, through all rows, and workers that were replaced."""
    for run in _shown_runs(recorder):
        yield _mark(f"epoch {run.epoch}", _LOOP, run.begun, "p")
    for worker, at in recorder.replacements:
        yield _mark("worker replaced", _FIRST_WORKER + worker, at, "t")


def _of(what: Turn | Work | Preparation) -> dict[str, Any]:
    return {"epoch": what.epoch} if what.number < 0 else {"epoch": what.epoch, "batch": what.number}


def _mark(name: str, row: int, at: int, scope: str) -> dict[str, Any]:
    return {"ph": "i", "name": name, "cat": "headrace", "pid": _PROCESS, "tid": row, "ts": at / 1000, "s": scope}


def _event(name: str, row: int, begun: int, ended: int, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": "headrace",
        "pid": _PROCESS,
        "tid": row,
        "ts": begun / 1000,
        "dur": max(ended - begun, 0) / 1000,
        "args": args,
    }
