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
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from headrace.base.errors import WorkerError
from headrace.base.messages import BeginEpoch, Begun, Failed, Finished, Outcome, Skipped, Span, Stop, Task
from headrace.base.randomness import enter_sample
from headrace.base.seeding import States, generator_states, restore_generators, seed_worker
from headrace.base.world import WorkerInfo, enter_worker_process
from headrace.batch.fetch import GATHERS, LISTENS, STOP
from headrace.engines.duplicates import Fingerprints
from headrace.engines.engine import Job
from headrace.engines.launch import Descriptor, Parcel
from headrace.engines.remote_errors import PackedError, pack_error
from headrace.engines.trailer import pack_trailer
from headrace.engines.worker import Worker, could_not_start, describe_bad, key_at, whereabouts
from headrace.frameworks.deferred import deferred_framework, immediate_framework
from headrace.transport.arena import WorkerArena
from headrace.transport.channel import WorkerChannel
from headrace.transport.lists import pack_lists
from headrace.transport.pickling import BATCH, OTHER, Message, encode
from headrace.transport.ring import Buffer
from headrace.transport.tasks import unpack_message

STACK_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR1) + (7 if hasattr(signal, "SIGRTMIN") else 0)
_SHORT = 1024
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


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker sends: an outcome or `Begun`, and the states of its generators afterwards if they are kept."""

    message: Finished | Any
    states: States | None = None

    def __reduce__(self) -> Any:
        return Report, (self.message, self.states)


@dataclass(frozen=True, slots=True)
class FailedRemotely:
    """A `Failed` whose error is packed."""

    number: int
    error: PackedError
    state: Any = None


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
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # it may load with workers too
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, _ignore)  # Ctrl-C goes to all; the loader ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(STACK_SIGNAL, file=assignment.stacks.fd, all_threads=True)
    if assignment.dies_with_thread:
        _ask_for_death_signal()
    fd = assignment.channel.fd
    threading.Thread(target=_leave_with_loader, args=(fd,), name="headrace-watch-loader", daemon=True).start()


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
        self._sent_states: States | None = None

    def serve(self) -> None:
        resume = self._assignment.resume
        self._start(resume)
        self._send(Begun(0))
        while True:
            match unpack_message(self._channel.receive()):
                case Task() as task:
                    outcome = self._work(task)
                    if not self._arena.board[STOP]:  # else nobody wants it
                        self._send_outcome(task, outcome)
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
        self._put(encode(Message(-1, OTHER), Report(Begun(epoch.number), states), self._arena))

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

    def _send_outcome(self, task: Task, outcome: Outcome) -> None:
        if isinstance(outcome, Finished):
            try:
                message = self._encode_batch(outcome)
            except Exception as error:  # noqa: BLE001 (whatever pickling raises)
                kind = type(outcome.batch).__name__
                unsendable = TypeError(f"The batch, a {kind}, cannot be sent to the loader: {error}")
                unsendable.__cause__ = error
                outcome = Failed(task.number, unsendable)
                if self._job.skip_errors:
                    bad = describe_bad(key_at(task, -1), task, self._assignment.number, unsendable)
                    outcome = Skipped(task.number, (bad,))
            else:
                # Quick batches are sent together while there is more to do, so that the loader wakes less often.
                more = bool(self._arena.board[GATHERS]) and self._channel.has_received
                self._put(message, outcome.span, more=more)
                return
        if isinstance(outcome, Failed):
            packed = pack_error(outcome.error, self._where(task))
            self._send(FailedRemotely(task.number, packed, outcome.state), task.number)
        else:
            self._send(outcome, task.number)

    def _where(self, task: Task) -> str:
        if self._worker is None:
            return f"in {whereabouts('process', self._assignment.number)}, as it started"
        return self._worker.place(task)

    def _encode_batch(self, outcome: Finished) -> list[Buffer]:
        if self._assignment.keeps_states or outcome.bad or outcome.fingerprint is not None or outcome.state is not None:
            return self._encode(outcome, outcome.number)
        return encode(Message(outcome.number, BATCH), pack_lists(outcome.batch, self._arena.allocate), self._arena)

    def _send(self, message: Any, number: int = -1) -> None:
        self._put(self._encode(message, number))

    def _put(self, message: list[Buffer], span: Span | None = None, *, more: bool = False) -> None:
        trailer = pack_trailer(None) if span is None else pack_trailer(span, perf_counter_ns())
        last = message[-1]
        if type(last) is bytes and len(last) < _SHORT:  # the fewer parts, the more messages are sent at once
            message[-1] = last + trailer
        else:
            message.append(trailer)
        self._channel.send(*message, more=more)

    def _encode(self, message: Any, number: int) -> list[Buffer]:
        states = self._changed_states() if self._assignment.keeps_states else None
        return encode(Message(number, OTHER), Report(message, states), self._arena)

    def _changed_states(self) -> States | None:
        states = generator_states()
        if states == self._sent_states:
            return None
        self._sent_states = states
        return states
