"""Runs tasks in Ray actors, on this machine and on others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

import ray

from headrace.base.endings import Keeper, Patience, await_dropped
from headrace.base.errors import WorkerError, WorkerStartError
from headrace.base.interrupts import hold_interrupts
from headrace.base.messages import Exhausted, Failed, Finished, Outcome, Skipped, Task
from headrace.base.node_notes import NodeNotes
from headrace.engines.depth import Depth
from headrace.engines.engine import Interrupted, Job
from headrace.engines.fleet import Fleet
from headrace.engines.ray_dispatcher import Begin, Describe, Dispatcher, EpochBegun, Roster, Submit
from headrace.engines.timeouts import Timeouts
from headrace.engines.unpicklable import name_culprit
from headrace.transport.apart import Apart, take_code_apart
from headrace.transport.encoding import pack_message

_OUTCOMES = (Finished, Failed, Skipped, Exhausted)
_DESCRIBE_S = 15.0


class RayActorEngine:
    """Every worker is a seat in an actor, with its own copy of the dataset but for large arrays.

    A thread of its own, the dispatcher, talks to Ray: so workers go on while the loop is busy, and no interrupt of the
    loop can tear its books.

    Args:
        hire: connects to the cluster, and makes what gives the actors.
        timeout: seconds without any outcome after which `receive` raises; 0 waits for ever, and warns after a minute.
        restart: whether a worker that was lost is replaced; its tasks are done again, with the same results.
        max_restarts: how many are replaced in a row, with no batch in between; None is 30 and one for each worker.
        on_restart: called for each worker that is replaced, with a text and its number.
        deepens: whether more than `prefetch_factor` tasks per worker may be in flight; see `Depth`.
    """

    works_ahead = True

    def __init__(
        self,
        hire: Callable[[], Roster],
        workers: int,
        prefetch_factor: int,
        *,
        timeout: float = 0,
        restart: bool = False,
        max_restarts: int | None = None,
        on_restart: Callable[[str, int], None] | None = None,
        deepens: bool = False,
    ) -> None:
        self.workers = workers
        self.depth = workers * prefetch_factor
        self._ahead = Depth(self.depth, deepens=deepens)
        self.capacity = self._ahead.most
        self._hire = hire
        self._timeout = timeout
        self._restart = restart
        self._max_restarts = max_restarts
        self._on_restart = on_restart
        self._keeper: Keeper | None = None  # of the dispatcher, as long as that has not ended
        self._is_closed = True
        self._unsent: list[tuple[Task, bytes]] = []
        self.nodes = NodeNotes()

    def start(self, job: Job) -> None:
        self.close()
        await_dropped()
        roster = self._hire()
        packed = ray.put(_pack_job(job))
        self._job = job
        self._owner = os.getpid()
        self._epoch = 0
        self._unsent = []
        self._timeouts = Timeouts(self._timeout)
        self._ahead.start()
        self._outcomes: SimpleQueue[Any] = SimpleQueue()
        fleet = Fleet(
            job, self.workers, restart=self._restart, max_restarts=self._max_restarts, on_restart=self._on_restart
        )
        self._dispatcher = Dispatcher(fleet, roster, packed, self._outcomes, self.nodes)
        thread = threading.Thread(target=self._dispatcher.run, name="headrace-ray", daemon=True)
        with hold_interrupts():
            self._keeper = Keeper(self, partial(_stop, self._dispatcher, thread))
            self._is_closed = False
            thread.start()

    def submit(self, task: Task, *, more: bool = False) -> None:
        self._check_open()
        self._unsent.append((task, pack_message(task)))
        if not more:
            self.flush()

    def flush(self) -> None:
        if self._unsent:
            tasks, self._unsent = self._unsent, []
            self._dispatcher.inbox.put(Submit(tasks))

    def receive(self) -> Outcome:
        outcome = self._next()
        if type(outcome) is EpochBegun:
            return self.receive()
        self._ahead.taken_in += 1
        if self._ahead.is_due():
            self.depth = self._ahead.adapted(self._dispatcher.n_bytes)
        return outcome  # type: ignore[no-any-return]

    def _next(self) -> Any:
        """What the dispatcher tells next, of outcomes and epochs."""
        dispatcher, outcomes = self._dispatcher, self._outcomes
        while True:
            if self._owner != os.getpid():
                raise WorkerError("The workers belong to the process that this one was forked from. Iterate anew.")
            asked = perf_counter()
            try:
                told = outcomes.get(timeout=self._timeouts.seconds)
            except Empty:
                self._timeouts.complain(self._describe_wait)
                continue
            finally:
                dispatcher.waited_s += perf_counter() - asked
            if isinstance(told, (*_OUTCOMES, EpochBegun)):
                return told
            if isinstance(told, BaseException):
                outcomes.put(told)  # for whoever asks again
                if self._keeper is not None:
                    self._keeper.begin()  # there is nothing left to wait for
                raise told
            if told is None:
                if self._is_closed:
                    outcomes.put(None)
                    raise WorkerError("The workers have been closed.")
                if self._keeper is None or self._keeper.is_ending:
                    raise SystemExit  # the interpreter exits while this thread loads; let it end without a word
                raise Interrupted
            told()  # a warning

    def begin_epoch(self, shared_seed: int | None = None) -> None:
        if self._dispatcher.broken is not None:
            self.start(replace(self._job, shared_seed=shared_seed, starts=None))
            return
        self.flush()
        self._epoch += 1
        self._dispatcher.inbox.put(Begin(shared_seed))
        while True:
            try:
                told = self._next()
            except Interrupted:
                continue
            if type(told) is EpochBegun and told.number == self._epoch:
                return

    def pids(self) -> dict[int, int]:
        """Of the workers that run now on this machine, by number."""
        return {} if self._is_closed else self._dispatcher.pids()

    def interrupt(self) -> None:
        if not self._is_closed:
            self._outcomes.put(None)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._outcomes.put(None)
            if self._keeper is not None:
                self._keeper.close()
                self._keeper = None

    def _check_open(self) -> None:
        if self._is_closed:
            raise WorkerError("The workers have been closed.")
        if self._dispatcher.broken is not None:
            raise self._dispatcher.broken

    def _describe_wait(self) -> str:
        answer: SimpleQueue[str] = SimpleQueue()
        self._dispatcher.inbox.put(Describe(answer))
        try:
            return answer.get(timeout=_DESCRIBE_S)
        except Empty:
            return "Nothing is known of the workers: Ray does not answer."


def _pack_job(job: Job) -> Apart:
    """The job as it travels.

    Raises:
        WorkerStartError: it cannot.
    """
    try:
        return take_code_apart(job)
    except Exception as error:  # noqa: BLE001 (whatever pickling raises)
        named = {"worker_init_fn" if name == "init_fn" else name: part for name, part in vars(job).items()}
        reason = name_culprit(named, take_code_apart) or str(error)
    raise WorkerStartError(
        f"The dataset, collate_fn and worker_init_fn must be picklable to be sent to a worker on Ray, but {reason}. "
        "Open files, connections and locks in the worker: on first use in __getitem__, or in __iter__."
    )


def _stop(dispatcher: Dispatcher, thread: threading.Thread, patience: Patience) -> None:
    dispatcher.grace_s = patience.grace_s
    dispatcher.inbox.put(None)
    thread.join(dispatcher.grace_s + 10)
