"""The report of a loader: one paragraph with a verdict, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.insight.words import as_batches, as_bytes, as_count, as_percent, as_time, as_workers

_MOST_SAMPLES = 5
_LONGEST_NAME = 40


class Report:
    """What `loader.report()` gives: prints as text.

    Attributes:
        stats: the numbers that it is made of, as `loader.stats()` gives them.
    """

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self.stats = stats

    @property
    def verdict(self) -> str:
        """The paragraph alone."""
        return str(self.stats["verdict"])

    @property
    def bottleneck(self) -> str:
        """What the verdict is about, in a word or two: "fetch", say, or "hidden"."""
        return str(self.stats["bottleneck"])

    def __str__(self) -> str:
        parts = [self.verdict, _summary(self.stats), _table(_stage_rows(self.stats))]
        if self.stats["num_workers"]:
            parts.append(_table(_worker_rows(self.stats)))
        if self.stats["slowest_samples"]:
            parts.append(_table(_sample_rows(self.stats)))
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return str(self)


def _summary(stats: Mapping[str, Any]) -> str:
    epochs = "1 epoch" if stats["epochs"] == 1 else f"{as_count(stats['epochs'])} epochs"
    parts = [
        f"{as_batches(stats['batches'])} of {epochs} in {as_time(stats['seconds'])}",
        f"{as_count(stats['samples_per_second'])} samples/s",
    ]
    if stats["bytes_per_batch"]:
        parts.append(f"{as_bytes(stats['bytes_per_second'])}/s ({as_bytes(stats['bytes_per_batch'])} per batch)")
    parts.append(f"first batch of an epoch after {as_time(stats['start_seconds'])}")
    if stats["num_workers"] and stats["ready"] is not None:
        parts.append(f"{as_percent(stats['ready'])} of batches ready when asked for, {stats['ready_ahead']:.1f} ahead")
    if stats["restarts"]:
        parts.append(f"{as_workers(stats['restarts'])} replaced")
    return "; ".join(parts) + "."


def _stage_rows(stats: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    seconds = stats["batch_seconds"]
    yield "stage", "per batch", "share"
    whose = "of a worker's work" if stats["num_workers"] else "of the loading"
    yield from _shares(seconds, ("fetch", "collate", "pack"), whose)
    yield from _shares(seconds, ("prepare",), "of the pinning thread's work")
    yield from _shares(seconds, ("wait", "pin", "step"), "of the loop's time")


def _shares(seconds: Mapping[str, float], stages: Sequence[str], whose: str) -> Iterable[Sequence[str]]:
    whole = sum(seconds[stage] for stage in stages)
    for stage in stages:
        if seconds[stage]:
            yield stage, as_time(seconds[stage]), f"{as_percent(seconds[stage] / whole)} {whose}"


def _worker_rows(stats: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    workers = stats["workers"]
    tells_memory = any("rss" in worker for worker in workers)
    yield ("worker", "batches", "busy", "cpu", *(("rss", "pss") if tells_memory else ()))
    for worker in workers:
        memory = (worker.get("rss"), worker.get("pss")) if tells_memory else ()
        yield (
            str(worker["worker"]),
            as_count(worker["batches"]),
            as_percent(worker["busy"]),
            as_percent(worker["cpu"]),
            *("-" if n_bytes is None else as_bytes(n_bytes) for n_bytes in memory),
        )


def _sample_rows(stats: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    has_workers = bool(stats["num_workers"])
    yield ("slowest samples", "time", *(["worker"] if has_workers else []), "batch")
    for sample in stats["slowest_samples"][:_MOST_SAMPLES]:
        name = f"number {sample['position']}" if sample["index"] is None else str(sample["index"])
        shown = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        worker = [str(sample["worker"])] if has_workers else []
        yield (shown, as_time(sample["seconds"]), *worker, str(sample["batch"]))


def _table(rows: Iterable[Sequence[str]]) -> str:
    cells = list(rows)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
