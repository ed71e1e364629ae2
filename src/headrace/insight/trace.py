"""The timeline as a trace that Perfetto and Chrome's `about:tracing` show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.insight.figures import Setup
from headrace.insight.recorder import Preparation, Recorder, Turn, Work
from headrace.insight.samples import samples_of
from headrace.insight.words import as_row

_PROCESS = 1
_LOOP, _PREPARING, _FIRST_WORKER = 0, 1, 2  # rows, from the top


def trace_of(recorder: Recorder, setup: Setup) -> dict[str, Any]:
    """The trace as JSON, in the Trace Event format: a row for the loop and for each worker."""
    events = [*_turns(recorder), *_preparations(recorder), *_works(recorder)]
    rows = sorted({event["tid"] for event in events})
    named = [_row(number, setup.workers) for number in rows]
    return {"traceEvents": [*named, *events], "displayTimeUnit": "ms"}


def _row(number: int, workers: int) -> dict[str, Any]:
    names = {_LOOP: "training loop", _PREPARING: "pinning"}
    name = names.get(number) or as_row(number - _FIRST_WORKER, workers)
    return {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": number, "args": {"name": name}}


def _turns(recorder: Recorder) -> Iterator[dict[str, Any]]:
    for turn in recorder.turns:
        yield _event("wait", _LOOP, turn.asked, turn.arrived, turn)
        if turn.given > turn.arrived:
            yield _event("pin", _LOOP, turn.arrived, turn.given, turn)
        yield _event("step", _LOOP, turn.given, turn.done, turn)


def _preparations(recorder: Recorder) -> Iterator[dict[str, Any]]:
    for preparation in recorder.preparations:
        yield _event("prepare", _PREPARING, preparation.begun, preparation.ended, preparation)


def _works(recorder: Recorder) -> Iterator[dict[str, Any]]:
    for work in recorder.work:
        row, span = _FIRST_WORKER + work.worker, work.span
        whole = _event("batch", row, span.begun, span.packed, work)
        if isinstance(work.keys, str):
            whole["name"] = work.keys
        yield whole
        stages = {"fetch": (span.begun, span.collating), "collate": (span.collating, span.made)}
        for name, (begun, ended) in {**stages, "pack": (span.made, span.packed)}.items():
            if ended > begun:
                yield _event(name, row, begun, ended, work)
        yield from _samples(work, row)


def _samples(work: Work, row: int) -> Iterator[dict[str, Any]]:
    begun = work.span.begun
    for key, ended in samples_of(work):
        yield _event("sample" if key is None else f"sample {key}", row, begun, ended, work)
        begun = ended


def _event(name: str, row: int, begun: int, ended: int, of: Turn | Work | Preparation) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": "headrace",
        "pid": _PROCESS,
        "tid": row,
        "ts": begun / 1000,
        "dur": max(ended - begun, 0) / 1000,
        "args": {"epoch": of.epoch, "batch": of.number},
    }
