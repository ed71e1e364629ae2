"""Prepares the batches of an engine in a background thread: pins their memory, copies them to a device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import TypeAlias

from headrace.base.errors import WorkerError, WorkerTimeoutError
from headrace.base.messages import Outcome, Task, decoded
from headrace.deliver.ahead import Ahead
from headrace.deliver.device import Delivery
from headrace.engines.engine import Engine, Job

Tell: TypeAlias = Callable[[int, int, int], None]
"""Hears which batch was prepared, and from when to when, in nanoseconds of `time.perf_counter_ns`."""


class PreparingEngine:
    """An engine whose finished batches have been through `delivery.prepare`, in one thread of its own.

    Tasks are still submitted, and keys drawn, by the thread of the training loop alone.

    Args:
        depth: how many prepared batches may wait.
        tell: hears how long each took.
    """

    works_ahead = True

    def __init__(self, engine: Engine, delivery: Delivery, depth: int, tell: Tell | None = None) -> None:
        self.workers = engine.workers
        self.capacity = engine.capacity
        self._engine = engine
        self._delivery = delivery
        self._depth = depth
        self._tell = tell
        self._listen()

    @property
    def depth(self) -> int:
        return self._engine.depth

    def _listen(self) -> None:
        self._outcomes = _Outcomes(self._engine)
        prepare = partial(_prepare, self._delivery, self._tell)
        self._ahead = Ahead(self._outcomes, prepare, depth=self._depth, begin=self._delivery.begin)

    def start(self, job: Job) -> None:
        self._engine.start(job)

    def submit(self, task: Task, *, more: bool = False) -> None:
        self._engine.submit(task, more=more)
        self._outcomes.expect_one()

    def flush(self) -> None:
        self._engine.flush()

    def receive(self) -> Outcome:
        self._outcomes.is_awaited = True
        try:
            outcome: Outcome = next(self._ahead)
        except StopIteration:
            raise WorkerError("The workers have been closed.") from None
        finally:
            self._outcomes.is_awaited = False
        return outcome

    def begin_epoch(self, shared_seed: int | None = None) -> None:
        self._ahead.close()
        self._engine.begin_epoch(shared_seed)
        self._listen()

    def interrupt(self) -> None:
        self._engine.interrupt()

    def close(self) -> None:
        self._engine.close()
        self._ahead.close()


def _prepare(delivery: Delivery, tell: Tell | None, outcome: Outcome) -> Outcome:
    outcome = decoded(outcome)
    begun = perf_counter_ns()
    prepared = delivery.prepare_outcome(outcome)
    if tell is not None:
        tell(outcome.number, begun, perf_counter_ns())
    return prepared


class _Outcomes:
    """The outcomes of an engine, as an endless iterator that waits while no task is in flight."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._expected = threading.Semaphore(0)
        self._closed = False
        self.is_awaited = False  # a time-out counts only while the training loop waits

    def expect_one(self) -> None:
        self._expected.release()

    def __next__(self) -> Outcome:
        self._expected.acquire()
        if self._closed:
            raise StopIteration
        while True:
            try:
                return self._engine.receive()
            except WorkerTimeoutError:
                if not self.is_awaited:
                    continue
                self._expected.release()
                raise
            except BaseException:
                self._expected.release()  # the outcome is still to come
                raise

    def close(self) -> None:
        self._closed = True
        self._expected.release()
        self._engine.interrupt()
