"""What a loader reports of itself: its numbers, a verdict with tables, and a line in the terminal while it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, TextIO, TypeVar

from headrace.base.html import paragraph, table
from headrace.base.optional import loaded
from headrace.insight.figures import Figures, Setup, figures_of, ratio
from headrace.insight.recorder import Recorder, SlowSample, WorkerTotals, plain_key
from headrace.insight.verdict import (
    as_batches,
    as_bytes,
    as_count,
    as_percent,
    as_time,
    as_workers,
    slow_samples,
    verdict_of,
)

T_co = TypeVar("T_co", covariant=True)

_S = 1e-9
_MOST_SAMPLES = 5
_LONGEST_NAME = 40
_MEMORY_LINE = re.compile(r"^(Rss|Pss):\s+(\d+) kB$", re.MULTILINE)
_EVERY_S = 0.1
_CLEAR = "\r\x1b[K"


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
        "batch_seconds": _batch_seconds(figures),
        "stages": dict(figures.stages),
        "cpu": figures.cpu,
        "ready": figures.ready,
        "ready_ahead": figures.ahead,
        "timed_batches": totals.turns + totals.starts,
        "slowest_samples": [_described(sample) for sample in slow_samples(recorder, epoch)],
        "rank": setup.rank,
        "world": setup.world,
        "node": setup.node,
        "engine": setup.engine,
        "num_workers": setup.workers,
        "restarts": recorder.restarts,
        "workers": [
            {"worker": number, **_of_worker(worker, figures), **({} if pids is None else _memory(pids.get(number)))}
            for number, worker in sorted(totals.workers.items())
            if number >= 0
        ],
        "bottleneck": verdict.kind,
        "verdict": verdict.text,
    }


def _batch_seconds(figures: Figures) -> dict[str, float]:
    names = ("fetch", "collate", "pack", "prepare", "wait", "pin", "step")
    return {name: getattr(figures, name) for name in names}


def _per_second(n: float, figures: Figures) -> float:
    return ratio(n, figures.seconds)


def _described(sample: SlowSample) -> dict[str, Any]:
    return {
        "index": plain_key(sample.key),
        "seconds": sample.ns * _S,
        "worker": sample.worker,
        "epoch": sample.epoch,
        "batch": sample.number,
        "position": sample.position,
    }


def _of_worker(worker: WorkerTotals, figures: Figures) -> dict[str, Any]:
    stages = {name: ns * _S for name, ns in worker.stages.items()}
    collate, send = stages.get("collate", 0.0), stages.get("send", 0.0)
    return {
        "batches": worker.batches,
        "tasks": worker.tasks,
        "samples": round(worker.samples),
        "busy": min(ratio(worker.busy_ns * _S, figures.seconds), 1.0),
        "fetch_seconds": sum(stages.values()) - collate - send,
        "collate_seconds": collate,
        "pack_seconds": send,
        "cpu": min(ratio(worker.cpu_ns, worker.cpu_of_ns), 1.0),
    }


def _memory(pid: int | None) -> dict[str, int | None]:
    """The bytes of a process: `rss` that are in memory, and `pss`, in which shared ones count in part.

    None where the system does not tell, or the process has ended.
    """
    found: list[tuple[str, str]] = []
    with suppress(OSError):
        found = _MEMORY_LINE.findall(Path(f"/proc/{pid}/smaps_rollup").read_text())
    sizes = {name.lower(): 1024 * int(kilobytes) for name, kilobytes in found}
    return {"rss": sizes.get("rss"), "pss": sizes.get("pss")}


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
        parts = [self.verdict, _summary(self.stats), text_table(_stage_rows(self.stats))]
        if self.stats["num_workers"]:
            parts.append(text_table(_worker_rows(self.stats)))
        if self.stats["slowest_samples"]:
            parts.append(text_table(_sample_rows(self.stats)))
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts = [paragraph(self.verdict), paragraph(_summary(self.stats)), table(_stage_rows(self.stats))]
        if self.stats["num_workers"]:
            parts.append(table(_worker_rows(self.stats)))
        if self.stats["slowest_samples"]:
            parts.append(table(_sample_rows(self.stats)))
        return "".join(parts)


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
    seconds, stages = stats["batch_seconds"], stats["stages"]
    yield "stage", "per batch", "share"
    whose = "of a worker's work" if stats["num_workers"] else "of the loading"
    yield from _shares(stages, tuple(stages), whose)
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


def text_table(rows: Iterable[Sequence[str]]) -> str:
    cells = list(rows)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


class ProgressLine(Generic[T_co]):
    """The batches of a loader, while one line tells how quickly they come and how long the loop waits for them.

    In a notebook, it is a bar. Elsewhere, nothing is written unless the file is a terminal.
    """

    def __init__(self, batches: Iterable[T_co], file: TextIO | None = None) -> None:
        self._batches = batches
        self._file = sys.stderr if file is None else file
        self._display = _notebook() if file is None else None
        self._shown: Any = None  # the bar

    def __len__(self) -> int:
        """The number of batches.

        Raises:
            TypeError: it is not known.
        """
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T_co]:
        if self._display is None and not self._file.isatty():
            return iter(self._batches)
        return self._told()

    def _told(self) -> Iterator[T_co]:
        total: int | None = None
        with suppress(TypeError):
            total = len(self)
        n, begun = 0, perf_counter()
        batches = iter(self._batches)
        told = perf_counter()
        waited = told - begun
        try:
            while True:
                asked = perf_counter()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                now = perf_counter()
                waited += now - asked
                n += 1
                if now - told >= _EVERY_S:
                    told = now
                    self._tell(n, total, now - begun, waited)
                yield batch
                del batch
        finally:
            if n:
                self._tell(n, total, perf_counter() - begun, waited, end="\n")

    def _tell(self, n: int, total: int | None, seconds: float, waited: float, end: str = "") -> None:
        text = describe_progress(n, total, seconds, waited)
        if self._display is None:
            self._file.write(_CLEAR + text + end)
            self._file.flush()
            return
        share = f" value='{min(n, total)}' max='{total}'" if total else " value='1' max='1'" if end else ""
        bar = self._display.HTML(f"<progress style='width:24em'{share}></progress> {escape(text)}")
        if self._shown is None:
            self._shown = self._display.display(bar, display_id=True)
        else:
            self._shown.update(bar)


def _notebook() -> Any:
    """What shows things in a notebook; None elsewhere."""
    ipython = loaded("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return loaded("IPython.display") if shell is not None and hasattr(shell, "kernel") else None


def describe_progress(n: int, total: int | None, seconds: float, waited: float) -> str:
    """How far a loop is, in a line.

    Examples:
        >>> describe_progress(250, 1000, 10.0, 0.3)
        'headrace: 25 %, 250 of 1,000 batches, 25 batches/s, waiting 3 %, 30 s left'
        >>> describe_progress(250, None, 10.0, 0.3)
        'headrace: 250 batches, 25 batches/s, waiting 3 %'
    """
    seconds = max(seconds, 1e-9)
    parts = [as_batches(n), f"{as_count(n / seconds)} batches/s", f"waiting {as_percent(waited / seconds)}"]
    if total:
        parts[:1] = [as_percent(n / total), f"{as_count(n)} of {as_batches(total)}"]
        parts.append(f"{_as_clock(max(total - n, 0) * seconds / n)} left")
    return "headrace: " + ", ".join(parts)


def _as_clock(seconds: float) -> str:
    whole: Any = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {whole % 60:02} s" if minutes else f"{whole} s"
