"""The timeline as one HTML page that needs nothing else: no server, no network."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from headrace.insight.figures import Setup
from headrace.insight.recorder import Recorder, Work
from headrace.insight.samples import plain_key, samples_of
from headrace.insight.stats import stats_of
from headrace.insight.words import as_bytes, as_count, as_percent, as_row, as_time, as_workers

_MOST_BOXES = 50_000  # samples


def timeline_page(recorder: Recorder, setup: Setup) -> str:
    """The page, with all that is in the recorder."""
    template = files("headrace.insight").joinpath("timeline.html").read_text(encoding="utf-8")
    data = json.dumps(timeline_data(recorder, setup), separators=(",", ":"))
    return template.replace("/*DATA*/", data.replace("</", "<\\/"))


def timeline_data(recorder: Recorder, setup: Setup) -> dict[str, Any]:
    """What the page draws. Times are in nanoseconds, from the first one."""
    work, turns, prepared = list(recorder.work), list(recorder.turns), list(recorder.preparations)
    start = min([made.span.begun for made in work] + [turn.asked for turn in turns], default=0)
    workers = sorted({made.worker for made in work})
    rows = [as_row(number, setup.workers) for number in workers]
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
        "facts": _facts(stats),
        "rows": [*rows, "training loop"],
        "work": described[::-1],
        "turns": [[turn.epoch, turn.number, *(at - start for at in turn[2:6])] for turn in turns],
        "prepared": [
            [pinning, epoch, number, begun - start, ended - start] for epoch, number, begun, ended in prepared
        ],
    }


def _describe(work: Work, row: int, start: int, *, with_samples: bool) -> dict[str, Any]:
    span = work.span
    times = [at - start for at in (span.begun, span.collating, span.made, span.packed)]
    what = work.keys if isinstance(work.keys, str) else None
    samples = samples_of(work) if with_samples else []
    keys: list[Any] = [key for key, _ in samples if key is not None]
    if not keys and what is None:
        keys = [plain_key(key) for key in work.keys]
    return {
        "at": [row, work.epoch, work.number, *times, span.cpu],
        "what": what,
        "count": work.n_samples,
        "keys": keys,
        "ends": [end - start for _, end in samples],
    }


def _facts(stats: dict[str, Any]) -> list[tuple[str, str, bool]]:
    seconds = stats["batch_seconds"]
    facts = [
        ("of the time the model waited", as_percent(stats["waited"]), stats["waited"] >= 0.05),
        ("batches", as_count(stats["batches"]), False),
        ("samples/s", as_count(stats["samples_per_second"]), False),
        ("fetch per batch", as_time(seconds["fetch"]), False),
        ("collate", as_time(seconds["collate"]), False),
        ("pack", as_time(seconds["pack"]), False),
        ("model's step", as_time(seconds["step"]), False),
    ]
    if stats["bytes_per_batch"]:
        facts.append(("per batch", as_bytes(stats["bytes_per_batch"]), False))
    if stats["num_workers"] and stats["ready"] is not None:
        facts.append(("ready when asked for", as_percent(stats["ready"]), False))
    return facts
