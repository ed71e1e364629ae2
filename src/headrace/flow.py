"""The running loop on the loader's side: keys go out as numbered tasks, batches come back in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from headrace.base.messages import Exhausted, Failed, Finished, Outcome, Task
from headrace.engines.engine import Engine
from headrace.reorder import ReorderBuffer


class Flow:
    """One epoch of batches, as an iterator that stays usable after an error.

    Guarantees: each task is submitted once and its outcome is told once; at most `engine.capacity` tasks are between
    submission and delivery; keys are drawn no earlier than that allows; with `in_order`, batches leave in the order of
    their keys.
    """

    def __init__(self, keys: Iterator[Any], engine: Engine, *, in_order: bool = True) -> None:
        self._keys = keys
        self._engine = engine
        self._reorder: ReorderBuffer[Outcome] | None = ReorderBuffer(engine.capacity) if in_order else None
        self._due: deque[Outcome] = deque()
        self._submitted = 0
        self._received = 0
        self._told = 0
        self._keys_ended = False

    def __iter__(self) -> Flow:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: what the user's code raised for this batch; the next call goes on with the one after it.
            StopIteration: the epoch is over.
        """
        while True:
            self._submit_tasks()
            if not self._due:
                if self._received == self._submitted:
                    raise StopIteration
                self._receive()
                continue
            outcome = self._due.popleft()
            self._told += 1
            match outcome:
                case Finished(batch=batch):
                    return batch
                case Failed(error=error):
                    raise error
                case Exhausted():
                    self._keys_ended = True

    def _submit_tasks(self) -> None:
        while not self._keys_ended and self._submitted - self._told < self._engine.capacity:
            try:
                keys = next(self._keys)
            except StopIteration:
                self._keys_ended = True
                return
            self._engine.submit(Task(self._submitted, keys))
            self._submitted += 1

    def _receive(self) -> None:
        outcome = self._engine.receive()
        self._received += 1
        if self._reorder is None:
            self._due.append(outcome)
        else:
            self._due.extend(self._reorder.put(outcome.number, outcome))

    def close(self) -> None:
        """Give up the rest of the epoch."""
        self._keys_ended = True
        self._due.clear()
        self._submitted = self._received
        self._engine.close()
