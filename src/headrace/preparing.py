"""Prepares the batches of an engine in a background thread: pins their memory, copies them to a device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import TypeAlias

from headrace.base.errors import WorkerError, WorkerTimeoutError
from headrace.base.messages import Finished, Outcome, Task, decoded
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
        in_order: whether batches are prepared in the order in which they were asked for. Then no more than `depth`
            are prepared ahead of the loop, whichever comes late; those that come early wait as they are.
    """

    works_ahead = True

    def __init__(
        self, engine: Engine, delivery: Delivery, depth: int, tell: Tell | None = None, *, in_order: bool = False
    ) -> None:
        self.workers = engine.workers
        self.capacity = engine.capacity
        self._engine = engine
        self._delivery = delivery
        self._depth = depth
        self._tell = tell
        self._in_order = in_order
        self._listen()

    @property
    def depth(self) -> int:
        return self._engine.depth

    def _listen(self) -> None:
        self._outcomes = _Outcomes(self._engine, in_order=self._in_order)
        prepare = partial(_prepare, self._delivery, self._tell)
        self._ahead = Ahead(self._outcomes, prepare, depth=self._depth, begin=self._delivery.begin)

    def start(self, job: Job) -> None:
        self._engine.start(job)

    def submit(self, task: Task, *, more: bool = False) -> None:
        with self._outcomes.expecting(task.number):
            self._engine.submit(task, more=more)

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
    """The outcomes of an engine, as an endless iterator that waits while no task is in flight.

    Args:
        in_order: whether batches come in the order of their tasks; other outcomes come at once.
    """

    def __init__(self, engine: Engine, *, in_order: bool = False) -> None:
        self._engine = engine
        self._expected = threading.Semaphore(0)
        self._closed = False
        self._order: deque[int] | None = deque() if in_order else None  # of the tasks that are expected
        self._early: dict[int, Outcome] = {}
        self.is_awaited = False  # a time-out counts only while the training loop waits

    @contextmanager
    def expecting(self, number: int) -> Iterator[None]:
        """The task is submitted meanwhile: its outcome may come before that returns."""
        if self._order is not None:
            self._order.append(number)
        try:
            yield
        except BaseException:
            if self._order is not None:
                self._order.remove(number)
            raise
        self._expected.release()

    def __next__(self) -> Outcome:
        order = self._order
        while True:
            if order and order[0] in self._early:
                return self._early.pop(order.popleft())
            outcome = self._receive()
            if order is None:
                return outcome
            if isinstance(outcome, Finished) and outcome.number != order[0]:
                self._early[outcome.number] = outcome
                continue
            order.remove(outcome.number)
            return outcome

    def _receive(self) -> Outcome:
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
