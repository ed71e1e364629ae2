"""What the loaders of this process do now, seen from any thread: counts, and figures of the latest interval."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

from headrace.insight.recorder import Recorder, Totals

_S = 1e-9
_TRIES = 16


class LiveLoader(NamedTuple):
    """A loader that has begun an epoch.

    Attributes:
        number: counts the loaders of the process.
        text: the loader in a line; empty if it is gone.
    """

    number: int
    recorder: Recorder
    text: str


_live: tuple[weakref.ref[Recorder], ...] = ()  # in the order in which they began
_numbers = count()


def note_begin(recorder: Recorder) -> None:
    """A loader begins an epoch. Where the OpenTelemetry API is in use, its instruments are made now."""
    global _live  # another thread may go through the former ones
    if recorder.number < 0:
        recorder.number = next(_numbers)
        _live = (*(ref for ref in _live if ref() is not None), weakref.ref(recorder))
    if "opentelemetry.metrics" in sys.modules:
        from headrace.insight.opentelemetry_metrics import make_instruments

        make_instruments()


def live_loaders() -> list[LiveLoader]:
    """The loaders that are still there, and have begun an epoch."""
    found = []
    for ref in _live:
        recorder = ref()
        if recorder is not None:
            owner = None if recorder.owner is None else recorder.owner()
            found.append(LiveLoader(recorder.number, recorder, "" if owner is None else repr(owner)))
    return found


def totals_now(recorder: Recorder) -> Totals:
    """The sums over all epochs, as far as they are known without disturbing the loop, in whatever thread it is."""
    for _ in range(_TRIES):
        try:
            return recorder.peek()
        except RuntimeError:  # a worker was added while they were gone through
            continue
    return Totals()


def flat_figures(now: Totals, before: Totals) -> dict[str, float]:
    """Plain numbers: totals, and what came of the time since `before`."""
    seconds = max((now.elapsed_ns - before.elapsed_ns) * _S, 0.0)
    batches, samples = now.batches - before.batches, now.samples - before.samples
    waited = max((now.waited_ns - before.waited_ns) * _S, 0.0)
    busy = sum(busy_seconds(now).values()) - sum(busy_seconds(before).values())
    workers = len([number for number in now.workers if number >= 0])
    weighed = now.weighed_bytes / now.weighed if now.weighed else 0.0
    return {
        "batches": now.batches,
        "samples": now.samples,
        "seconds": now.elapsed_ns * _S,
        "wait_seconds": now.waited_ns * _S,
        "batches_per_second": _ratio(batches, seconds),
        "samples_per_second": _ratio(samples, seconds),
        "bytes_per_second": _ratio(batches, seconds) * weighed,
        "wait_share": min(_ratio(waited, seconds), 1.0),
        "wait_per_batch": _ratio(waited, batches),
        "workers_busy": min(_ratio(max(busy, 0.0), seconds * workers), 1.0),
    }


def busy_seconds(totals: Totals) -> Mapping[int, float]:
    """How long each worker has worked; without workers, the loop itself."""
    return {number: worker.busy_ns * _S for number, worker in sorted(dict(totals.workers).items())}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def labels_of(loader: LiveLoader) -> dict[str, Any]:
    """What tells the loaders of all processes of a job apart."""
    setup = loader.recorder.setup()
    rank, kind = ("0", "") if setup is None else (str(setup.rank), setup.kind)
    return {"loader": str(loader.number), "rank": rank, "kind": kind}
