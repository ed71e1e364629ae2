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

from headrace.base.compiling import stop_compiling
from headrace.base.interrupts import unblock_interrupts
from headrace.base.messages import BeginEpoch, Begun, Stop, Task
from headrace.base.optional import loaded
from headrace.base.world import keep_freed_memory
from headrace.batch.fetch import LISTENS, STOP
from headrace.engines.engine import Job
from headrace.engines.launch import Descriptor, Parcel
from headrace.engines.outbox import Outbox
from headrace.engines.seat import Resume, Seat
from headrace.transport.channel import WorkerChannel
from headrace.transport.encoding import unpack_messages
from headrace.transport.shared_memory import WorkerArena

STACK_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR1) + (7 if hasattr(signal, "SIGRTMIN") else 0)
_NICENESS = 2
LOST_CONNECTION = 71
"""The exit code of a worker whose connection to the loader was closed under it."""


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
        modules += ["headrace.frameworks.torch_tensors"]
    if job.reader is not None:
        modules.append("numpy.random")
    for module in modules:
        import_module(module)


def run(parcel: Parcel, assignment: Assignment) -> None:
    """Work until told to stop, or until the loader is gone."""
    stop_compiling()
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
    unblock_interrupts()
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
        self._job = job

    def serve(self) -> None:
        assignment, board, messages = self._assignment, self._arena.board, deque[Any]()
        seat = Seat(
            self._job,
            assignment.number,
            assignment.workers,
            board=board,
            allocate=self._arena.allocate,
            keeps_states=assignment.keeps_states,
            resume=assignment.resume,
        )
        outbox = Outbox(
            self._arena,
            self._channel,
            worker=assignment.number,
            skip_errors=self._job.skip_errors,
            keeps_states=assignment.keeps_states,
            where=seat.where,
        )
        outbox.send(Begun(0))
        while True:
            if not messages:
                messages.extend(unpack_messages(self._channel.receive()))
            match messages.popleft():
                case Task() as task:
                    outcome = seat.work(task)
                    if not board[STOP]:  # else nobody wants it
                        has_more = bool(messages) or self._channel.has_received
                        outbox.send_outcome(task, outcome, may_wait=has_more)
                    seat.rest()
                    del task, outcome
                case BeginEpoch() as epoch:
                    outbox.begin(*seat.begin(epoch))
                case Stop():
                    return
