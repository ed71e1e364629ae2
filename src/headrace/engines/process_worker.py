"""The life of a worker process."""

from __future__ import annotations

import errno
import faulthandler
import gc
import multiprocessing
import os
import select
import signal
import sys
import threading
from collections import deque
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from headrace.base.errors import WorkerError
from headrace.base.generators import States, generator_states, restore_generators, seed_worker
from headrace.base.messages import BeginEpoch, Begun, Failed, Outcome, Stop, Task
from headrace.base.optional import loaded
from headrace.base.randomness import enter_sample
from headrace.base.world import WorkerInfo, enter_worker_process, keep_freed_memory
from headrace.batch.fetch import LISTENS, STOP
from headrace.engines.duplicates import Fingerprints
from headrace.engines.engine import Job
from headrace.engines.launch import Descriptor, Parcel
from headrace.engines.outbox import Outbox
from headrace.engines.worker import Worker, could_not_start, whereabouts
from headrace.frameworks.deferred import deferred_framework, immediate_framework
from headrace.transport.channel import WorkerChannel
from headrace.transport.encoding import unpack_messages
from headrace.transport.shared_memory import WorkerArena

STACK_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR1) + (7 if hasattr(signal, "SIGRTMIN") else 0)
_NICENESS = 2
LOST_CONNECTION = 71
"""The exit code of a worker whose connection to the loader was closed under it."""


@dataclass(frozen=True)
class Resume:
    """How a worker takes over from one that died.

    Attributes:
        states: of the random generators, before the first task or the replay; None means freshly seeded.
        replay: a task of a stream, to be done again `times` times: what the dead worker had done in this epoch.
    """

    states: States | None
    replay: Task | None = None
    times: int = 0


@dataclass(frozen=True)
class Assignment:
    """What a worker process gets besides its job.

    Attributes:
        dies_with_thread: whether the thread that starts the worker lives as long as the loader's process.
        keeps_states: whether the states of the random generators are reported after each task.
    """

    number: int
    workers: int
    channel: Descriptor
    arena: Descriptor
    arena_bytes: int
    stacks: Descriptor
    dies_with_thread: bool
    keeps_states: bool
    resume: Resume | None


def preload(job: Job) -> None:
    """Import what a worker will import, before it is forked.

    Else another thread may be in the middle of that, and the worker, to which the thread is lost, waits for ever.
    """
    modules = []
    if loaded("torch") is not None:
        modules += ["headrace.frameworks.torch_tensors", "headrace.frameworks.torch_tensors"]
    if job.reader is not None:
        modules.append("numpy.random")
    for module in modules:
        import_module(module)


def run(parcel: Parcel, assignment: Assignment) -> None:
    """Work until told to stop, or until the loader is gone."""
    _settle(assignment)
    try:
        _WorkerProcess(parcel.content, assignment).serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the loader is gone
    except OSError as error:
        if error.errno == errno.EBADF:
            os._exit(LOST_CONNECTION)
        raise


def _settle(assignment: Assignment) -> None:
    """Make the process a worker: its signals, its end, and what it inherited."""
    gc.freeze()  # collecting what a fork inherited would only copy it
    keep_freed_memory()
    _give_way()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # it may load with workers too
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, _ignore)  # Ctrl-C goes to all; the loader ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(STACK_SIGNAL, file=assignment.stacks.fd, all_threads=True)
    if assignment.dies_with_thread:
        _ask_for_death_signal()
    fd = assignment.channel.fd
    threading.Thread(target=_leave_with_loader, args=(fd,), name="headrace-watch-loader", daemon=True).start()


def _give_way() -> None:
    """Let the loop go first where cores are short: workers that get ahead of it only come to wait for it, all at once.

    Whenever it waits for a batch itself, the workers have all cores.
    """
    if hasattr(os, "nice"):
        os.nice(_NICENESS)


def _ignore(*_: object) -> None:
    """Not SIG_IGN, which the programs that a dataset starts would inherit."""


def _ask_for_death_signal() -> None:
    """Let Linux kill this process with its parent, even if compiled code never lets another thread run."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PR_SET_PDEATHSIG = 1


def _leave_with_loader(fd: int) -> None:
    """End this process when the loader's side of the channel is gone, whatever the user's code is doing."""
    poll = select.poll()
    poll.register(fd, 0)
    for _, event in poll.poll():
        if event & select.POLLHUP:
            os._exit(1)


class _WorkerProcess:
    def __init__(self, job: Job, assignment: Assignment) -> None:
        self._assignment = assignment
        self._arena = WorkerArena(assignment.arena.fd, assignment.arena_bytes)
        self._channel = WorkerChannel(assignment.channel.fd, self._arena.ring)
        self._arena.board[LISTENS] = 1
        self._worker: Worker | None = None
        self._failure: BaseException | None = None
        self._job = job
        self._fingerprints = Fingerprints(job, assignment.workers)
        self._outbox = Outbox(
            self._arena,
            self._channel,
            worker=assignment.number,
            skip_errors=job.skip_errors,
            keeps_states=assignment.keeps_states,
            where=self._where,
        )

    def serve(self) -> None:
        resume = self._assignment.resume
        self._start(resume)
        self._outbox.send(Begun(0))
        board, messages = self._arena.board, deque[Any]()
        while True:
            if not messages:
                messages.extend(unpack_messages(self._channel.receive()))
            match messages.popleft():
                case Task() as task:
                    outcome = self._work(task)
                    if not board[STOP]:  # else nobody wants it
                        has_more = bool(messages) or self._channel.has_received
                        self._outbox.send_outcome(task, outcome, may_wait=has_more)
                    if self._worker is not None:
                        self._worker.rest()
                    del task, outcome
                case BeginEpoch() as epoch:
                    self._begin(epoch)
                case Stop():
                    return

    def _start(self, resume: Resume | None) -> None:
        """What fails here is the outcome of the first task, as in torch."""
        number, workers = self._assignment.number, self._assignment.workers
        job = self._job
        seed = seed_worker(job.base_seed, number)
        enter_sample(None)  # what the parent's `rng` had begun is not to be gone on with by all workers alike
        enter_worker_process(WorkerInfo(number, workers, seed, job.dataset))
        try:
            if job.init_fn is not None:
                job.init_fn(number)
            if resume is not None and resume.states is not None:
                restore_generators(resume.states)
            # Functions that a user has registered want to see the framework's own arrays.
            framework = immediate_framework if job.taught else deferred_framework
            self._worker = Worker(job, number, self._arena.board, framework(job.output, self._arena.allocate))
            if resume is not None and resume.replay is not None:
                for _ in range(resume.times):
                    self._worker.work(resume.replay)
        except Exception as error:  # noqa: BLE001
            self._failure = error

    def _begin(self, epoch: BeginEpoch) -> None:
        states = generator_states() if self._assignment.keeps_states else None
        if self._worker is not None:
            try:
                self._worker.begin_epoch(epoch.shared_seed)
            except Exception as error:  # noqa: BLE001
                self._failure = error
        self._outbox.begin(Begun(epoch.number), states)

    def _work(self, task: Task) -> Outcome:
        failure, self._failure = self._failure, None
        if failure is not None:
            return Failed(task.number, failure)
        if self._worker is None:
            return could_not_start(self._assignment.number, task, self._job)
        try:
            return self._fingerprints.stamp(self._worker.work(task))
        except SystemExit as error:
            # The worker would leave with nothing but an exit code to tell.
            left = WorkerError(f"SystemExit({error.code!r}) was raised in a worker: something called sys.exit().")
            left.__cause__ = error
            return Failed(task.number, left)

    def _where(self, task: Task) -> str:
        if self._worker is None:
            return f"in {whereabouts('process', self._assignment.number)}, as it started"
        return self._worker.place(task)
