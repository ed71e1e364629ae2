"""The tasks of a stream's open windows: who does them, and which of them an outcome belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.base.messages import Outcome, Task
from headrace.engines.engine import Engine
from headrace.streams.open_window import OpenWindow


class WindowTasks:
    """Numbers tasks, and deals windows to workers.

    Args:
        engine: the workers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: dict[int, tuple[OpenWindow, int]] = {}  # by the number of the task
        self._called: dict[int, int] = {}  # the lanes of tasks that somebody waits for
        self._answers: dict[int, Outcome] = {}
        self._in_flight = [0] * max(1, engine.workers)
        self._number = 0

    def idlest(self) -> int:
        """The worker that has least to do."""
        return min(range(len(self._in_flight)), key=self._in_flight.__getitem__)

    def ask(self, window: OpenWindow, part: int, keys: Any) -> None:
        """Have the next part of a window done."""
        self._asked[self._number] = (window, part)
        self._submit(keys, window.lane)

    def _submit(self, keys: Any, lane: int) -> int:
        self._in_flight[lane] += 1
        self._number += 1
        self._engine.submit(Task(self._number - 1, keys, lane), more=True)
        return self._number - 1

    def flush(self) -> None:
        """Let the workers know of what was asked."""
        self._engine.flush()

    def receive(self) -> tuple[OpenWindow, int, Outcome] | None:
        """Wait for the next part that is done; None if it was something else."""
        outcome = self._engine.receive()
        if outcome.number in self._called:
            self._in_flight[self._called.pop(outcome.number)] -= 1
            self._answers[outcome.number] = outcome
            return None
        window, part = self._asked.pop(outcome.number)
        self._in_flight[window.lane] -= 1
        return window, part, outcome

    def call(self, requests: Sequence[Any]) -> list[int]:
        """Have the workers do something else, which `answered` tells of."""
        numbers = []
        for keys in requests:
            lane = self.idlest()
            self._called[self._number] = lane
            numbers.append(self._submit(keys, lane))
        self._engine.flush()
        return numbers

    def answered(self, numbers: Sequence[int]) -> list[Outcome] | None:
        """What has come of calls; None if some are still at work."""
        if not all(number in self._answers for number in numbers):
            return None
        return [self._answers.pop(number) for number in numbers]

    def forget(self) -> None:
        """Nobody wants to know what comes of it."""
        self._asked.clear()
        self._called.clear()
