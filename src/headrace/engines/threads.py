"""Runs tasks in threads of this process: for work that releases the GIL, or where processes cost too much."""

from __future__ import annotations

import copy
import sys
import threading
import traceback
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from headrace.base.endings import Keeper, Patience, await_dropped
from headrace.base.errors import WorkerError, add_note
from headrace.base.interrupts import hold_interrupts
from headrace.base.messages import BeginEpoch, Begun, Failed, Outcome, Stop, Task
from headrace.base.world import WorkerInfo, enter_worker_thread
from headrace.batch.fetch import LISTENS, POSITION, STOP, TASK, Board
from headrace.data.dataset import is_datapipe
from headrace.engines.duplicates import Fingerprints
from headrace.engines.engine import Interrupted, Job
from headrace.engines.timeouts import Timeouts
from headrace.engines.worker import Worker, could_not_start, place_of, whereabouts
from headrace.frameworks.recycled_memory import RecycledMemory


class ThreadEngine:
    """Every worker is a thread with a shallow copy of the dataset; samples and batches are not copied at all.

    The global random generators belong to all threads together, so they are not seeded here.

    Args:
        timeout: seconds without any outcome after which `receive` raises; 0 waits for ever, and warns after a minute.
    """

    works_ahead = True

    def __init__(self, workers: int, prefetch_factor: int, timeout: float = 0) -> None:
        self.workers = workers
        self.capacity = self.depth = workers * prefetch_factor
        self._timeout = timeout
        self._keeper: Keeper | None = None  # of the threads, as long as they have not ended
        self._is_closed = True

    def start(self, job: Job) -> None:
        self.close()
        await_dropped()
        self._is_closed = False
        self._job = job
        self._outcomes: SimpleQueue[Outcome | Begun | None] = SimpleQueue()
        self._inboxes: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(self.workers)]
        self._boards: list[Board] = [[0, 0, 0, 0] for _ in range(self.workers)]
        self._in_flight: dict[int, Task] = {}
        self._epoch = 0
        self._timeouts = Timeouts(self._timeout)
        self._threads = [
            threading.Thread(
                target=_run,
                args=(job, number, self.workers, self._boards[number], self._inboxes[number], self._outcomes),
                name=f"headrace-worker-{number}",
                daemon=True,
            )
            for number in range(self.workers)
        ]
        with hold_interrupts():
            end = partial(_stop, self._threads, self._boards, self._inboxes, self._outcomes)
            self._keeper = Keeper(self, end)
            for thread in self._threads:
                thread.start()

    def submit(self, task: Task, *, more: bool = False) -> None:
        self._in_flight[task.number] = task
        self._inboxes[task.worker].put(task)

    def flush(self) -> None:
        """Nothing is kept."""

    def receive(self) -> Outcome:
        outcome = self._wait()
        if outcome is None and (self._keeper is None or self._keeper.is_ending):
            self._outcomes.put(None)  # for whoever asks again
            if not self._is_closed:
                raise SystemExit  # the interpreter exits while this thread loads; let the thread end without a word
            raise WorkerError("The workers have been closed.")
        if outcome is None:
            raise Interrupted
        assert not isinstance(outcome, Begun)
        del self._in_flight[outcome.number]
        return outcome

    def begin_epoch(self, shared_seed: int | None = None) -> None:
        if self._keeper is None:  # they were closed
            self.start(replace(self._job, shared_seed=shared_seed, starts=None))
            return
        self._epoch += 1
        for inbox in self._inboxes:
            inbox.put(BeginEpoch(self._epoch, shared_seed))
        missing = self.workers
        while missing:
            told = self._wait()
            missing -= type(told) is Begun and told.epoch == self._epoch
        self._in_flight.clear()

    def interrupt(self) -> None:
        self._outcomes.put(None)

    def close(self) -> None:
        self._is_closed = True
        keeper = self._keeper
        if keeper is None:
            return
        if threading.current_thread() in self._threads:
            keeper.begin()  # which ends when this thread has left the sample that closes its own loader
            return
        keeper.close()
        self._keeper = None

    def _wait(self) -> Outcome | Begun | None:
        while True:
            try:
                outcome = self._outcomes.get(timeout=self._timeouts.seconds)
            except Empty:
                if self._timeout:
                    self._note_wait(in_vain=True)  # a worker that is known to be stuck is not waited for again
                self._timeouts.complain(self._describe_wait)
            except KeyboardInterrupt:
                self._note_wait(in_vain=True)
                raise
            else:
                self._note_wait(in_vain=False)
                return outcome

    def _note_wait(self, *, in_vain: bool) -> None:
        """Have little patience with the workers when they are to end; or as much as ever."""
        if self._keeper is not None:
            self._keeper.patience.is_vain = in_vain

    def _describe_wait(self) -> str:
        """Which workers are at work, on which sample, and where in the code."""
        frames = sys._current_frames()
        lines = []
        for number, (thread, board) in enumerate(zip(self._threads, self._boards, strict=True)):
            task, frame = self._in_flight.get(board[TASK] - 1), frames.get(thread.ident or 0)
            doing = "has not started yet" if task is None else f"is at {place_of(task, board[POSITION])}"
            if frame is not None and (task is not None or not board[LISTENS]):
                lines.append(f"Worker {number} ({thread.name}) {doing}:\n{''.join(traceback.format_stack(frame))}")
        return "\n".join(lines) or "All workers are idle."


def _run(
    job: Job,
    number: int,
    workers: int,
    board: Board,
    inbox: SimpleQueue[Any],
    outcomes: SimpleQueue[Outcome | Begun | None],
) -> None:
    """The life of a worker. What fails before the first task is the outcome of that task."""
    worker: Worker | None = None
    failure: BaseException | None = None
    fingerprints = Fingerprints(job, workers)
    try:
        job = replace(job, dataset=_own(job.dataset))
        enter_worker_thread(WorkerInfo(number, workers, job.base_seed + number, job.dataset))
        if job.init_fn is not None:
            job.init_fn(number)
        worker = Worker(job, number, board, kind="thread", allocate=RecycledMemory().allocate)
    except BaseException as error:  # noqa: BLE001 (a thread that leaves would keep the loop waiting)
        failure = error
        add_note(error, f"raised in {whereabouts('thread', number)}, as it started")
    board[LISTENS] = 1
    while True:
        match inbox.get():
            case Task() as task:
                if failure is not None:
                    outcomes.put(Failed(task.number, failure))
                    failure = None
                    continue
                if worker is None:
                    outcomes.put(could_not_start(number, task, job))
                    continue
                try:
                    outcome = worker.work(task)
                except BaseException as error:  # noqa: BLE001 (a thread that leaves would keep the loop waiting)
                    outcome = Failed(task.number, error)
                if isinstance(outcome, Failed):
                    add_note(outcome.error, f"raised {worker.place(task)}")
                outcomes.put(fingerprints.stamp(outcome))
                worker.rest()
                del outcome, task
            case BeginEpoch(number=epoch, shared_seed=shared_seed):
                if worker is not None:
                    try:
                        worker.begin_epoch(shared_seed)
                    except Exception as error:  # noqa: BLE001
                        failure = error
                outcomes.put(Begun(epoch))
            case Stop():
                return


def _own(dataset: Any) -> Any:
    """A copy for one worker, so that `worker_init_fn` may change its attributes; its contents are shared."""
    try:
        # A graph of DataPipes refers to itself.
        return copy.deepcopy(dataset) if is_datapipe(dataset) else copy.copy(dataset)
    except Exception:  # noqa: BLE001 (a dataset that cannot be copied is shared)
        return dataset


def _stop(
    threads: list[threading.Thread],
    boards: list[Board],
    inboxes: list[SimpleQueue[Any]],
    outcomes: SimpleQueue[Outcome | Begun | None],
    patience: Patience,
) -> None:
    """Let every thread leave after the sample it is at; one that takes too long is left behind, as a daemon."""
    for board, inbox in zip(boards, inboxes, strict=True):
        board[STOP] = 1
        inbox.put(Stop())
    outcomes.put(None)
    patience.join(threads)
