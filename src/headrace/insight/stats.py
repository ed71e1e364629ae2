"""The statistics of a loader as plain values, for JSON and for logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.insight.figures import Figures, Setup, figures_of
from headrace.insight.memory import memory_of
from headrace.insight.recorder import Recorder, SlowSample
from headrace.insight.samples import plain_key
from headrace.insight.totals import WorkerTotals
from headrace.insight.verdict import Verdict, judge
from headrace.insight.words import as_time

_S = 1e-9
_MOST_NAMED = 3


def stats_of(
    recorder: Recorder, setup: Setup, *, epoch: int | None = None, pids: Mapping[int, int] | None = None
) -> dict[str, Any]:
    """What `loader.stats()` gives.

    Args:
        pids: of the workers, if their memory is to be told.

    Raises:
        KeyError: nothing is known of that epoch.
    """
    figures, totals = figures_of(recorder, epoch), recorder.totals(epoch)
    verdict = verdict_of(recorder, setup, epoch)
    return {
        "epochs": figures.epochs,
        "batches": figures.batches,
        "samples": figures.samples,
        "seconds": figures.seconds,
        "batches_per_second": _per_second(figures.batches, figures),
        "samples_per_second": _per_second(figures.samples, figures),
        "bytes_per_second": _per_second(figures.batches * figures.n_bytes, figures),
        "bytes_per_batch": figures.n_bytes,
        "waited": figures.waited,
        "start_seconds": figures.start,
        "batch_seconds": _stages(figures),
        "cpu": figures.cpu,
        "ready": figures.ready,
        "ready_ahead": figures.ahead,
        "timed_batches": totals.turns + totals.starts,
        "slowest_samples": [_described(sample) for sample in _slow(recorder, epoch)],
        "engine": setup.engine,
        "num_workers": setup.workers,
        "restarts": recorder.restarts,
        "workers": [
            {"worker": number, **_of_worker(worker, figures), **({} if pids is None else _memory(pids.get(number)))}
            for number, worker in sorted(totals.workers.items())
        ],
        "bottleneck": verdict.kind,
        "verdict": verdict.text,
    }


def verdict_of(recorder: Recorder, setup: Setup, epoch: int | None = None) -> Verdict:
    """What the times of a loader say."""
    slow = _slow(recorder, epoch)[:_MOST_NAMED]
    named = [f"{_name(sample)} ({as_time(sample.ns * _S)})" for sample in slow if 2 * sample.ns > slow[0].ns]
    return judge(figures_of(recorder, epoch), setup, named)


def _stages(figures: Figures) -> dict[str, float]:
    names = ("fetch", "collate", "pack", "prepare", "wait", "pin", "step")
    return {name: getattr(figures, name) for name in names}


def _per_second(n: float, figures: Figures) -> float:
    return n / figures.seconds if figures.seconds else 0.0


def _slow(recorder: Recorder, epoch: int | None) -> list[SlowSample]:
    return [sample for sample in recorder.slow_samples() if epoch in (None, sample.epoch)]


def _described(sample: SlowSample) -> dict[str, Any]:
    return {
        "index": plain_key(sample.key),
        "seconds": sample.ns * _S,
        "worker": sample.worker,
        "epoch": sample.epoch,
        "batch": sample.number,
        "position": sample.position,
    }


def _name(sample: SlowSample) -> str:
    if sample.key is None:
        return f"number {sample.position} of batch {sample.number}"
    return str(plain_key(sample.key))


def _of_worker(worker: WorkerTotals, figures: Figures) -> dict[str, Any]:
    return {
        "batches": worker.batches,
        "samples": worker.samples,
        "busy": min(worker.busy_ns * _S / figures.seconds, 1.0) if figures.seconds else 0.0,
        "fetch_seconds": worker.fetch_ns * _S,
        "collate_seconds": worker.collate_ns * _S,
        "pack_seconds": worker.pack_ns * _S,
        "cpu": min(worker.cpu_ns / worker.cpu_of_ns, 1.0) if worker.cpu_of_ns else 0.0,
    }


def _memory(pid: int | None) -> dict[str, int | None]:
    return {"rss": None, "pss": None} if pid is None else memory_of(pid)
