"""Helps to test loaders: checks for any of them, an engine whose order the test decides, datasets that misbehave."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from headrace.base.messages import Outcome, Task
from headrace.conformance import Conformance, check_loader
from headrace.data.dataset import Dataset
from headrace.engines.engine import Job
from headrace.engines.worker import Worker

__all__ = [
    "Conformance",
    "DyingDataset",
    "FlakyDataset",
    "HandDrivenEngine",
    "SlowDataset",
    "check_loader",
]


class HandDrivenEngine:
    """Completes tasks in the order that `choose` wants, as fast or slow workers would.

    Args:
        choose: gets the numbers of the tasks in flight, oldest first, and returns the one to complete next.
        capacity: how many tasks may be in flight.

    Examples:
        >>> from headrace import DataLoader
        >>> engine = HandDrivenEngine(choose=max, capacity=3)  # always the newest first
        >>> [batch.tolist() for batch in DataLoader(range(5), engine=engine)]
        [[0], [1], [2], [3], [4]]
        >>> engine.completed
        [2, 1, 0, 4, 3]
    """

    workers = 1
    works_ahead = False

    def __init__(self, choose: Callable[[Sequence[int]], int], capacity: int = 2) -> None:
        self.capacity = self.depth = capacity
        self.completed: list[int] = []
        self.most_in_flight = 0
        self.closed = False
        self._choose = choose
        self._in_flight: dict[int, Task] = {}

    def start(self, job: Job) -> None:
        self._worker = Worker(job)
        self._in_flight.clear()
        self.completed.clear()

    def submit(self, task: Task, *, more: bool = False) -> None:
        self._in_flight[task.number] = task
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))

    def flush(self) -> None:
        """Nothing is kept."""

    def receive(self) -> Outcome:
        number = self._choose(list(self._in_flight))
        self.completed.append(number)
        return self._worker.work(self._in_flight.pop(number))

    def begin_epoch(self, shared_seed: int | None = None) -> None:
        self._in_flight.clear()
        self._worker.begin_epoch(shared_seed)

    def interrupt(self) -> None:
        """Nothing ever waits."""

    def close(self) -> None:
        self._in_flight.clear()
        self.closed = True


class SlowDataset(Dataset[Any]):
    """Waits before it gives a sample.

    Args:
        seconds: the wait, for all samples or as a function of the index.
    """

    def __init__(self, samples: Sequence[Any], seconds: float | Callable[[int], float]) -> None:
        self._samples = samples
        self._seconds = seconds

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._seconds(index) if callable(self._seconds) else self._seconds)
        return self._samples[index]

    def __len__(self) -> int:
        return len(self._samples)


class FlakyDataset(Dataset[Any]):
    """Raises for some indices.

    Args:
        bad: the indices that raise.
        error: makes the exception from the index.
    """

    def __init__(
        self, samples: Sequence[Any], bad: Iterable[int], error: Callable[[int], Exception] | None = None
    ) -> None:
        self._samples = samples
        self._bad = frozenset(bad)
        self._error = error or (lambda index: ValueError(f"sample {index} is bad"))

    def __getitem__(self, index: int) -> Any:
        if index in self._bad:
            raise self._error(index)
        return self._samples[index]

    def __len__(self) -> int:
        return len(self._samples)


class DyingDataset(Dataset[Any]):
    """Ends the worker process that asks for some indices, or keeps it for ever.

    Args:
        how: for each such index, how: by SIGKILL, by SIGSEGV, by `os._exit(3)`, or stuck in a sample that never ends.
        once_in: a folder in which it is noted who has died; with it, an index is deadly only the first time.
    """

    def __init__(
        self,
        samples: Sequence[Any],
        how: Mapping[int, Literal["kill", "segv", "exit", "stuck"]],
        once_in: str | Path | None = None,
    ) -> None:
        self._samples = samples
        self._how = dict(how)
        self._folder = None if once_in is None else Path(once_in)

    def __getitem__(self, index: int) -> Any:
        if index in self._how and self._is_due(index):
            self._die(self._how[index])
        return self._samples[index]

    def __len__(self) -> int:
        return len(self._samples)

    def _is_due(self, index: int) -> bool:
        if self._folder is None:
            return True
        try:
            (self._folder / f"died-at-{index}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _die(self, how: str) -> None:
        """Raises RuntimeError outside of worker processes, which must not end."""
        import multiprocessing
        import resource

        if multiprocessing.parent_process() is None:
            raise RuntimeError("A DyingDataset would end this process; load it with worker processes.")
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        match how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segv":
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                os._exit(3)
        threading.Event().wait()
