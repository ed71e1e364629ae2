"""What engines share whose workers may be lost: whose tasks are where, and what becomes of those of a lost one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from headrace.base.errors import WorkerDiedError, WorkerError, WorkerStartError, warn_user
from headrace.base.messages import BadSample, BeginEpoch, Begun, Failed, Finished, Outcome, Skipped, Task
from headrace.base.randomness import WorkerStates
from headrace.engines.deaths import Deaths
from headrace.engines.engine import Job
from headrace.engines.outbox import FailedRemotely, Report
from headrace.engines.seat import Resume
from headrace.engines.worker import key_at, place_of


@dataclass(eq=False, kw_only=True)
class Duties:
    """What one worker has to do, and what is known of what it did: all that another one needs to take over.

    Attributes:
        is_ready: whether it has started to work.
        in_flight: the tasks that it has, in their order.
        last_done: a task of an iterable that came back, and `times_done` how many did in this epoch.
        states: of its generators, after the last task that came back.
        states_at_start: of the epoch; None means freshly seeded.
        dataset_at_start: the state of an iterable dataset there, if it knows one; None means that it is new.
        dataset: the state of a dataset by key after the last task that came back, if it knows one.
    """

    number: int
    is_ready: bool = False
    in_flight: dict[int, Task] = field(default_factory=dict)
    last_done: Task | None = None
    times_done: int = 0
    states: WorkerStates | None = None
    states_at_start: WorkerStates | None = None
    dataset_at_start: Any = None
    dataset: Any = None

    def inherit(self, lost: Duties) -> None:
        """Take over what is known of a worker that this one stands in for, except its tasks."""
        self.last_done, self.times_done = lost.last_done, lost.times_done
        self.states, self.states_at_start = lost.states, lost.states_at_start
        self.dataset_at_start, self.dataset = lost.dataset_at_start, lost.dataset


@dataclass(frozen=True)
class Loss:
    """How a worker was lost.

    Attributes:
        text: tells of it.
        at_work: the task and the position of the sample that it was at, if it was at any.
        most: after how many losses at one sample it is not tried again.
    """

    text: str
    at_work: tuple[Task, int] | None
    most: int


class Fleet:
    """The workers of a job.

    Guarantees: every task in flight becomes one outcome in `ready`, whichever worker brings it; what a lost worker
    had not brought is done again by another one, with the same results.

    Args:
        restart: whether lost workers are replaced.
        max_restarts: how many are replaced in a row, with no batch in between; see `Deaths`.
        on_restart: called for each worker that is replaced, with a text and its number.

    Attributes:
        ready: outcomes that nobody has asked for yet.
        epoch: counts those of these workers; `begun` are the workers that have begun it.
    """

    def __init__(
        self,
        job: Job,
        workers: int,
        *,
        restart: bool,
        max_restarts: int | None = None,
        on_restart: Callable[[str, int], None] | None = None,
    ) -> None:
        self.job = self._former_job = job  # of this epoch, and of the one before
        self.workers = workers
        self.restart = restart
        self.ready: deque[Outcome] = deque()
        self.epoch = 0
        self.begun: set[int] = set()
        self._on_restart = on_restart
        self._deaths = Deaths(workers, max_restarts)
        self._bad: dict[int, tuple[BadSample, ...]] = {}
        self._pending_warnings: deque[Callable[[], None]] = deque()  # of deaths; told when all is in order again

    def begin_epoch(self, shared_seed: int | None) -> BeginEpoch:
        """What all workers are to be told."""
        self.epoch += 1
        self._former_job, self.job = self.job, replace(self.job, shared_seed=shared_seed, starts=None)
        self.begun.clear()
        return BeginEpoch(self.epoch, shared_seed)

    @property
    def all_begun(self) -> bool:
        return len(self.begun) == self.workers

    def forget_outcomes(self) -> None:
        """Nobody wants what the epoch before has brought."""
        self.ready.clear()
        self._bad.clear()

    def take_in(self, duties: Duties, report: Report) -> None:
        """A worker has reported something."""
        message = report.message
        if isinstance(message, Begun):
            duties.is_ready = True
            self._deaths.note_start()
            if message.epoch == self.epoch > 0:
                self.begun.add(duties.number)
                duties.states_at_start, duties.dataset_at_start = report.states, message.dataset
                duties.in_flight.clear()
                duties.times_done = 0
            duties.states = report.states or duties.states
            return
        duties.states = report.states or duties.states
        self._deaths.note_outcome()
        task = duties.in_flight.pop(message.number, None)
        if task is None:
            return  # of an epoch that was given up
        if self.restart and self.job.iterable:
            duties.last_done = task
            duties.times_done += 1
        elif self.restart and message.state is not None:
            duties.dataset = message.state.get("dataset")
        if isinstance(message, FailedRemotely):
            self.ready.append(Failed(message.number, message.error.rebuild(), message.state))
            return
        bad = self._bad.pop(message.number, ())
        if isinstance(message, Finished):
            message = message._replace(bad=(*bad, *message.bad))
        elif bad and isinstance(message, Skipped):
            message = Skipped(message.number, (*bad, *message.bad), message.state)
        self.ready.append(message)

    def lose(self, duties: Duties, loss: Loss) -> WorkerError | None:
        """A worker was lost. Returns why it is not replaced; None if it is to be."""
        if not self.restart:
            return WorkerDiedError(loss.text)
        self._deaths.count(has_worked=bool(duties.is_ready or duties.times_done))
        if self._deaths.are_too_many:
            return WorkerDiedError(f"{loss.text} {self._deaths.describe()}")
        error = None if loss.at_work is None else self._blame(duties, *loss.at_work, loss)
        if error is None:
            text = describe_restart(loss.text)
            self._pending_warnings.append(
                partial(warn_user, text) if self._on_restart is None else partial(self._on_restart, text, duties.number)
            )
        return error

    def job_of(self, duties: Duties) -> Job:
        """The job that another worker begins with: that of the epoch before, if the lost one was still in it."""
        job = self._former_job if self._is_late(duties) else self.job
        return job if duties.dataset is None else replace(job, starts=None)

    def _is_late(self, duties: Duties) -> bool:
        """Whether a worker is still in the epoch before, which was left."""
        return self.epoch > 0 and duties.number not in self.begun

    def resume(self, duties: Duties) -> Resume:
        """How another worker takes over."""
        if self.job.iterable:
            return Resume(duties.states_at_start, duties.last_done, duties.times_done, duties.dataset_at_start)
        return Resume(duties.states, dataset=duties.dataset)

    def unfinished(self, duties: Duties) -> list[Any]:
        """What another worker has to be told after that: the tasks in flight, and the epoch if it had not begun it."""
        messages: list[Any] = list(duties.in_flight.values())
        if self._is_late(duties):
            messages.append(BeginEpoch(self.epoch, self.job.shared_seed))
        return messages

    def warn(self) -> None:
        """Tell of the workers that were replaced, now that all is in order again."""
        while self._pending_warnings:
            self._pending_warnings.popleft()()

    def hand_warnings(self, put: Callable[[Callable[[], None]], None]) -> None:
        """Hand them to another thread, which is to call them."""
        while self._pending_warnings:
            put(self._pending_warnings.popleft())

    def note_false_start(self, cause: str) -> WorkerError | None:
        """A worker was lost that had nothing to do yet. Returns why no other one is started, if so."""
        self._deaths.count(has_worked=False)
        if not self._deaths.are_too_many:
            return None
        return WorkerStartError(f"Workers cannot be started: {cause}.")

    def _blame(self, duties: Duties, task: Task, position: int, loss: Loss) -> WorkerError | None:
        """Note which sample a worker died at. After so many deaths the sample is bad, and is not tried again."""
        nth = self._deaths.count_at(self.epoch - self._is_late(duties), task.number, position)
        if nth == 1:
            return None
        text = describe_again(loss.text, nth, place_of(task, position))
        if nth < loss.most:
            self._pending_warnings.append(
                partial(warn_user, f"{text} It is tried once more: somebody else may kill them.")
            )
            return None
        bad = BadSample(key_at(task, position), task.number, duties.number, f"WorkerDiedError: {text}", text)
        if not self.job.skip_errors or self.job.iterable:
            del duties.in_flight[task.number]
            if self.job.iterable:
                return WorkerDiedError(text)  # nothing can be left out of a stream
            self.ready.append(Failed(task.number, WorkerDiedError(text)))
        elif position < 0 or not self.job.batched:
            del duties.in_flight[task.number]
            self.ready.append(Skipped(task.number, (*self._bad.pop(task.number, ()), bad)))
        else:
            self._bad[task.number] = (*self._bad.get(task.number, ()), bad)
            duties.in_flight[task.number] = Task(task.number, task.keys, task.worker, (*task.leave_out, position))
        return None


def describe_again(death: str, nth: int, place: str) -> str:
    """What is told of a place at which workers died before."""
    return f"{death} It was the {'second' if nth == 2 else 'third'} worker to die at {place}."


def describe_restart(death: str) -> str:
    """What is told when a worker that died is replaced for the first time."""
    return (
        f"{death} Another one takes its place and does its batches again. Later restarts are announced only if a "
        "worker dies at the same place again."
    )
