"""What `headrace run` does in the processes of a script: serves torch's DataLoaders, and reports at the end."""

from __future__ import annotations

import json
import os
import sys
import weakref
from dataclasses import asdict, dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from headrace.base.after_import import after_import
from headrace.base.world import get_worker_info
from headrace.insight.report import Report
from headrace.order.shard import resolve_shard
from headrace.torch_patch import ScriptLine, Served, TorchPatch

_VARIABLE = "HEADRACE_RUN"
_BEFORE_OTHERS = 100  # multiprocessing ends what has the highest number first


@dataclass(frozen=True)
class Settings:
    """What `headrace run` was asked for.

    Attributes:
        pid: of the process that runs the script itself.
        timeline: the file to write the timeline to, if any.
    """

    pid: int
    report: bool
    timeline: str | None

    def as_environment(self) -> dict[str, str]:
        """The environment that hands these settings to all processes of the script."""
        return {_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls) -> Settings:
        return cls(**json.loads(os.environ[_VARIABLE]))


def begin() -> None:
    """Serve torch in this process from now on."""
    session = Session(Settings.of_environment())
    service = TorchPatch(session.tell, session.note)

    def install(module: Any) -> None:
        service.install(module)

    after_import("torch.utils.data.dataloader", install)


@dataclass
class _Reports:
    """The loaders of one place: how many they were, and the report of the one that took longest."""

    count: int = 0
    longest: Report | None = None

    def add(self, report: Report) -> None:
        self.count += 1
        if self.longest is None or report.stats["seconds"] > self.longest.stats["seconds"]:
            self.longest = report


class Session:
    """Keeps the reports of the loaders of this process, and prints them when it ends.

    A forked process, a rank for instance, starts with none.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._rank = 0
        self._open: dict[int, Served] = {}
        self._reports: dict[ScriptLine, _Reports] = {}  # in the order in which they came
        Finalize(None, self.end, exitpriority=_BEFORE_OTHERS)

    def tell(self, line: str) -> None:
        """Print to stderr, apart from what the script prints."""
        print(f"headrace: {line}", file=sys.stderr, flush=True)

    def note(self, loader: Any, served: Served) -> None:
        """Report on a loader when torch's is gone, or at the end. What datasets load in workers is not reported."""
        if get_worker_info() is not None:
            return
        if os.getpid() != self._pid:
            self._begin()
        shard = resolve_shard("auto", "drop")
        self._rank = 0 if shard is None else shard.rank
        self._reports.setdefault(served.place, _Reports())
        self._open[id(served)] = served
        weakref.finalize(loader, self._close, id(served)).atexit = False

    def _close(self, key: int) -> None:
        """Keep what is known of a loader; nothing that it holds."""
        if os.getpid() != self._pid or key not in self._open:
            return  # a loader of the process that this one was forked from, or one that was reported already
        served = self._open.pop(key)
        told = self._reports[served.place]
        told.add(served.loader.report())
        if self._settings.timeline is not None and told.count == 1:
            self._write_timeline(served, Path(self._settings.timeline))

    def _write_timeline(self, served: Served, asked: Path) -> None:
        path = self._timeline_path(asked, served.place)
        try:
            served.loader.timeline(path)
        except OSError as error:
            self.tell(f"the timeline {path} cannot be written: {error.strerror}.")

    def _timeline_path(self, asked: Path, place: ScriptLine) -> Path:
        """One file for each place and rank."""
        rank = f"-rank{self._rank}" if self._rank else ""
        position = list(self._reports).index(place)
        number = f"-{position + 1}" if position else ""
        return asked.with_name(f"{asked.stem}{rank}{number}{asked.suffix}")

    def end(self) -> None:
        """Print what there is to say."""
        if os.getpid() != self._pid:
            return
        for key in list(self._open):
            self._close(key)
        if not self._reports and self._pid == self._settings.pid:
            self._print_that_nothing_loaded()
        if self._settings.report:
            for place, told in self._reports.items():
                self._print(place, told)

    def _print_that_nothing_loaded(self) -> None:
        missing = ["nothing to report"] if self._settings.report else []
        if self._settings.timeline is not None:
            missing.append(f"no timeline written to {self._settings.timeline}")
        if missing:
            self.tell(
                f"{' and '.join(missing)}, for this process iterated no DataLoader of torch. headrace's own loaders "
                "have report() and timeline(path) for that."
            )

    def _print(self, place: ScriptLine, told: _Reports) -> None:
        """All of it for the first rank; of the others, what matters."""
        more = f", the longest of {told.count} like it" if told.count > 1 else ""
        if told.longest is not None and self._rank:
            self.tell(f"rank {self._rank}, the loader at {place}{more}: {told.longest.verdict}")
        else:
            self.tell(f"the loader at {place}{more}:\n{told.longest}\n")
