"""The methods by which a loader reports where its time goes."""

from __future__ import annotations

import weakref
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, overload

from headrace.insight.recorder import Recorder

if TYPE_CHECKING:
    import os

    from headrace.insight.figures import LoaderKind, Setup
    from headrace.insight.rank_report import RankReport
    from headrace.insight.report import ProgressLine, Report
    from headrace.insight.timeline import Timeline


class LoaderReports:
    """A loader that reports where its time goes.

    Every batch is timed in the worker that makes it and in the loop that uses it; of batches that come every few
    microseconds, one run of many. What the methods tell is about all epochs so far, also in the middle of one.
    """

    @cached_property
    def _recorder(self) -> Recorder:
        recorder = Recorder()
        recorder.owner = weakref.ref(self)
        return recorder

    def stats(self, *, epoch: int | None = None, memory: bool = False) -> dict[str, Any]:
        """The figures so far, as plain values for JSON: counts, rates, times of each stage, waiting, workers.

        Times are in seconds, rates per second, shares between 0 and 1. `stages` has the average times of a batch in a
        worker, by what it does: `fetch` or `read`, the steps of a stream, `collate`, `send`. `batch_seconds` sums these
        up as `fetch`, `collate` and `pack`, and has what a thread needed to `prepare` (pin, move) a batch, and what the
        loop had to `wait`, to `pin` it itself, and for its own `step`.

        Args:
            epoch: of this epoch only, one of the last 64.
            memory: tell what memory each worker process has: `rss`, and `pss`, in which shared pages count in part. It
                takes some milliseconds for each; on Linux, while the workers run.

        Raises:
            ValueError: nothing is known of that epoch.

        Examples:
            >>> from headrace import DataLoader
            >>> loader = DataLoader(range(100), batch_size=10)
            >>> for batch in loader:
            ...     pass
            >>> stats = loader.stats()
            >>> stats["batches"], stats["samples"], stats["num_workers"]
            (10, 100, 0)
        """
        from headrace.insight.report import stats_of

        pids = self._recorder.pids() if memory else None
        try:
            return stats_of(self._recorder, self._setup(), epoch=epoch, pids=pids)
        except KeyError:
            raise ValueError(f"Nothing is known of epoch {epoch}: it was not run, or long ago.") from None

    @overload
    def report(self, *, epoch: int | None = None, memory: bool = False, ranks: Literal[False] = False) -> Report: ...
    @overload
    def report(self, *, epoch: int | None = None, memory: bool = False, ranks: Literal[True]) -> RankReport: ...
    def report(self, *, epoch: int | None = None, memory: bool = False, ranks: bool = False) -> Report | RankReport:
        """Why the model waits and what would help, in a paragraph and a few tables: `print(loader.report())`.

        Args:
            epoch: of this epoch only, one of the last 64.
            memory: tell the memory of the workers, too; see `stats`.
            ranks: gather the figures of all ranks by `torch.distributed`, and name the slow rank, node and worker. All
                ranks must call it.

        Raises:
            ValueError: nothing is known of that epoch.
        """
        from headrace.insight.report import Report

        stats = self.stats(epoch=epoch, memory=memory)
        if not ranks:
            return Report(stats)
        from headrace.insight.rank_report import RankReport, gather

        return RankReport(gather(stats))

    def metrics(self, prefix: str = "headrace/") -> dict[str, float]:
        """Plain numbers for an experiment tracker: totals so far, and rates and shares since the last call.

        Log them every few steps: `wandb.log(loader.metrics())`, `mlflow.log_metrics(loader.metrics(), step)`, or
        `writer.add_scalar(name, value, step)` for each. `wait_share` is the one to watch: the share of time in which
        the model waited for data.

        Args:
            prefix: of all names.

        Examples:
            >>> from headrace import DataLoader
            >>> loader = DataLoader(range(100), batch_size=10)
            >>> for batch in loader:
            ...     pass
            >>> found = loader.metrics("data/")
            >>> found["data/batches"], found["data/samples"], "data/wait_share" in found
            (10, 100, True)
        """
        from headrace.insight.live import flat_figures

        recorder = self._recorder
        now = recorder.totals()
        before, recorder.logged = recorder.logged, now
        run = recorder.latest
        found = {"epoch": 0.0 if run is None else run.epoch, **flat_figures(now, before)}
        found |= {"restarts": recorder.restarts, "left_out": len(getattr(self, "errors", ()))}
        return {prefix + name: value for name, value in found.items()}

    def timeline(self, path: str | os.PathLike[str] | None = None) -> Timeline:
        """A page that shows the last few thousand batches: what each worker did when, and when the loop waited.

        The page needs no network and nothing installed: open it in a browser, zoom with the wheel, drag. In a notebook,
        it is shown below the cell.

        Args:
            path: the file to write it to, if any.

        Raises:
            OSError: the file cannot be written.
            ValueError: it is named like a picture; `headrace.plot_timings` draws one.
        """
        from headrace.insight.timeline import Timeline, timeline_page

        if path is not None and Path(path).suffix.lower() in (".png", ".svg", ".pdf", ".jpg", ".jpeg"):
            raise ValueError(f"timeline() writes a page: name it .html, not {path}. plot_timings() draws pictures.")

        timeline = Timeline(timeline_page(self._recorder, self._setup()))
        if path is not None:
            timeline.save(path)
        return timeline

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the same as a trace, for https://ui.perfetto.dev and `chrome://tracing`.

        Raises:
            OSError: the file cannot be written.
        """
        import json

        from headrace.insight.timeline import trace_of

        Path(path).write_text(json.dumps(trace_of(self._recorder, self._setup())), encoding="utf-8")

    def progress(self, file: TextIO | None = None) -> ProgressLine[Any]:
        """The batches of an epoch, while a line in the terminal tells how quickly they come, and how long it waits.

        Args:
            file: where the line goes, if that is a terminal; by default stderr.

        Examples:
            >>> from headrace import DataLoader
            >>> for batch in DataLoader(range(4), batch_size=2, output="numpy").progress():
            ...     print(batch)
            [0 1]
            [2 3]
        """
        from headrace.insight.report import ProgressLine

        return ProgressLine(self, file)  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        from headrace.base.html import code, paragraph

        shown = code(repr(self))
        if not self._recorder.runs:
            return shown
        return shown + paragraph(str(self.stats()["verdict"]))

    @property
    def _kind(self) -> LoaderKind:
        """Of what data it makes batches."""
        return "map"

    def _setup(self) -> Setup:
        import platform

        from headrace.insight.figures import Setup, cores

        rank, world = self._rank()
        loader: Any = self
        name = "inline" if loader.num_workers == 0 else loader.engine
        return Setup(
            engine=name if isinstance(name, str) else type(name).__name__,
            workers=loader.num_workers,
            in_order=loader.in_order,
            persistent=loader.persistent_workers,
            cores=cores(),
            kind=self._kind,
            rank=rank,
            world=world,
            node=platform.node(),
        )

    def _rank(self) -> tuple[int, int]:
        """Which rank this process is, and of how many."""
        return 0, 1
