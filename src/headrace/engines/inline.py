"""Runs tasks in the caller's own thread, each when its result is asked for."""

from __future__ import annotations

from collections import deque

from headrace.base.messages import Failed, Outcome, Task
from headrace.engines.engine import Job
from headrace.engines.worker import Worker
from headrace.frameworks.recycled_memory import RecycledMemory


class InlineEngine:
    """No workers: nothing is done ahead, and errors come with their own traceback."""

    workers = 1
    capacity = depth = 1
    works_ahead = False

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def start(self, job: Job) -> None:
        self._worker = Worker(job, allocate=RecycledMemory().allocate)

    def submit(self, task: Task, *, more: bool = False) -> None:
        self._tasks.append(task)

    def flush(self) -> None:
        """Nothing is kept."""

    def receive(self) -> Outcome:
        task = self._tasks.popleft()
        try:
            return self._worker.work(task)
        except BaseException as interrupt:  # noqa: BLE001 (the flow raises it, and can go on)
            return Failed(task.number, interrupt)

    def begin_epoch(self, shared_seed: int | None = None) -> None:
        self._tasks.clear()
        self._worker.begin_epoch(shared_seed)

    def interrupt(self) -> None:
        """Nothing ever waits."""

    def close(self) -> None:
        self._tasks.clear()
