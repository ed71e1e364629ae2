"""A worker at its seat, apart from the loop: it starts, does its tasks, and begins its epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import WorkerError
from headrace.base.generators import seed_worker
from headrace.base.messages import BeginEpoch, Begun, Failed, Outcome, Task
from headrace.base.own_states import knows_state, load_state, state_of
from headrace.base.randomness import WorkerStates, enter_sample, restore_worker, worker_states
from headrace.base.world import WorkerInfo, enter_worker_process
from headrace.batch.fetch import Board
from headrace.engines.duplicates import Fingerprints
from headrace.engines.engine import Job
from headrace.engines.worker import Worker, could_not_start, whereabouts
from headrace.frameworks.deferred import deferred_framework, immediate_framework
from headrace.frameworks.framework import Allocate, Framework


@dataclass(frozen=True)
class Resume:
    """How a worker takes over from one that was lost.

    Attributes:
        states: of the random generators, before the first task or the replay; None means freshly seeded.
        replay: a task of a stream, to be done again `times` times: what the lost worker had done in this epoch.
        dataset: the state of an iterable dataset before all this, which former epochs may have changed.
    """

    states: WorkerStates | None
    replay: Task | None = None
    times: int = 0
    dataset: Any = None


class Seat:
    """Worker `number` of a job, in a process that is not the loop's.

    What fails as it starts, or as an epoch begins, is the outcome of the first task after that, as in torch.

    Args:
        board: where it tells what it is doing.
        allocate: gives memory for batches.
        keeps_states: whether the states of the random generators are wanted.
        resume: how it takes over from another one.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        workers: int,
        *,
        board: Board,
        allocate: Allocate,
        keeps_states: bool,
        resume: Resume | None,
    ) -> None:
        self._job = job
        self._number = number
        self._keeps_states = keeps_states
        self._fingerprints = Fingerprints(job, workers)
        self._worker: Worker | None = None
        self._failure: BaseException | None = None
        self.info = WorkerInfo(number, workers, seed_worker(job.base_seed, number), job.dataset)
        enter_sample(None)  # what the parent's `rng` had begun is not to be gone on with by all workers alike
        enter_worker_process(self.info)
        try:
            self._start(board, allocate, resume)
        except Exception as error:  # noqa: BLE001
            self._failure = error

    def _start(self, board: Board, allocate: Allocate, resume: Resume | None) -> None:
        job, number = self._job, self._number
        if job.init_fn is not None:
            job.init_fn(number)
        if resume is not None and resume.states is not None:
            restore_worker(resume.states)
        if resume is not None and resume.dataset is not None:
            load_state(job.dataset, resume.dataset)
        # Functions that a user has registered want to see the framework's own arrays.
        framework: Callable[..., Framework] = immediate_framework if job.taught else deferred_framework
        self._worker = Worker(job, number, board, framework(job.output, allocate))
        if resume is not None and resume.replay is not None:
            for _ in range(resume.times):
                self._worker.work(resume.replay)

    def begin(self, epoch: BeginEpoch) -> tuple[Begun, WorkerStates | None]:
        """Begin another epoch. Returns what is to be reported, and the states of the generators before it."""
        keeps_states, dataset = self._keeps_states, None
        states = worker_states() if keeps_states else None
        if self._worker is not None:
            try:
                if keeps_states and self._job.iterable and knows_state(self._job.dataset):
                    dataset = state_of(self._job.dataset)
                self._worker.begin_epoch(epoch.shared_seed)
            except Exception as error:  # noqa: BLE001
                self._failure = error
        return Begun(epoch.number, dataset), states

    def work(self, task: Task) -> Outcome:
        """What becomes of a task. The board tells of it until `rest` is called."""
        failure, self._failure = self._failure, None
        if failure is not None:
            return Failed(task.number, failure)
        if self._worker is None:
            return could_not_start(self._number, task, self._job)
        try:
            return self._fingerprints.stamp(self._worker.work(task))
        except SystemExit as error:
            # The worker would leave with nothing but an exit code to tell.
            left = WorkerError(f"SystemExit({error.code!r}) was raised in a worker: something called sys.exit().")
            left.__cause__ = error
            return Failed(task.number, left)

    def rest(self) -> None:
        """The outcome has been handed over."""
        if self._worker is not None:
            self._worker.rest()

    def where(self, task: Task) -> str:
        """At what it is, for people."""
        if self._worker is None:
            return f"in {whereabouts('process', self._number)}, as it started"
        return self._worker.place(task)
