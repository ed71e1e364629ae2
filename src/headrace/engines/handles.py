"""The loader's side of worker processes: their start, what is known of each, and their end."""

from __future__ import annotations

import multiprocessing.process
import os
import socket
import threading
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from headrace.base.endings import Patience
from headrace.base.messages import Stop, Task
from headrace.batch.fetch import POSITION, STOP, TASK
from headrace.engines.engine import Job
from headrace.engines.fleet import Duties
from headrace.engines.launch import Descriptor, start_process
from headrace.engines.process_worker import Assignment, run
from headrace.engines.seat import Resume
from headrace.engines.shutdown import end_processes
from headrace.transport.channel import LoaderChannel
from headrace.transport.encoding import pack_message, pack_pulls
from headrace.transport.shared_memory import LoaderArena, create_segment

_LEASED_SHARE = 4  # of an arena, this part may be held by the user before batches are copied


@dataclass(eq=False, kw_only=True)
class WorkerHandle(Duties):
    """One worker process.

    Attributes:
        exit_fd: a descriptor that can be read from when the process has ended.
        unsent: the last of its tasks, not yet sent; they ask for the same `Pull`, and are sent as one message.
    """

    process: BaseProcess
    exit_fd: int
    channel: LoaderChannel
    arena: LoaderArena
    unsent: list[Task] = field(default_factory=list)

    def pull(self, task: Task) -> None:
        """Give it a task that asks for a `Pull`, to be sent with the next `flush`."""
        if self.unsent and self.unsent[-1].keys is not task.keys:
            self._put_unsent()
        self.in_flight[task.number] = task
        self.unsent.append(task)

    def put(self, task: Task, message: bytes) -> None:
        """Give it a task, which is packed in a message, to be sent with the next `flush`."""
        self._put_unsent()
        self.in_flight[task.number] = task
        self.channel.put(message)

    def flush(self) -> None:
        """Send what it has been given, as far as the worker takes it."""
        self._put_unsent()
        self.channel.flush()

    def _put_unsent(self) -> None:
        if self.unsent:
            self.channel.put(pack_pulls(self.unsent))
            self.unsent.clear()

    def at_work(self) -> tuple[Task, int] | None:
        """The task and the position of the sample that it is at, or was at when it died."""
        task = self.in_flight.get(self.arena.board[TASK] - 1)
        return None if task is None else (task, self.arena.board[POSITION])

    def close(self) -> None:
        """Let go of a process that has ended."""
        self.channel.close()
        self.arena.retire()
        if self.exit_fd != self.process.sentinel:
            os.close(self.exit_fd)
        _started.discard(self.process)
        self.process.close()


def launch_worker(
    context: BaseContext,
    job: Job,
    number: int,
    workers: int,
    stacks: int,
    *,
    keeps_states: bool,
    resume: Resume | None,
) -> WorkerHandle:
    """Start worker `number` of so many.

    Args:
        stacks: a file for the worker to write its stack to, when asked.
        keeps_states: whether the worker reports the states of its random generators after each task.

    Raises:
        WorkerStartError: the job cannot be sent to it.
        OSError: there are no descriptors, no memory or no processes left.
    """
    ours, theirs = socket.socketpair()
    segment, channel = -1, None
    try:
        segment, n_bytes = create_segment(workers)
        arena = LoaderArena(segment, n_bytes, n_bytes // _LEASED_SHARE)
        channel = LoaderChannel(ours, arena.ring)
        assignment = Assignment(
            number,
            workers,
            Descriptor(theirs.fileno()),
            Descriptor(segment),
            n_bytes,
            Descriptor(stacks),
            # The signal that Linux sends when a parent dies comes from the thread that made the child.
            dies_with_thread=threading.current_thread() is threading.main_thread(),
            keeps_states=keeps_states,
            resume=resume,
        )
        process = start_process(context, run, job, (assignment,))
    except BaseException:
        ours.close() if channel is None else channel.close()
        raise
    finally:
        theirs.close()
        if segment >= 0:
            os.close(segment)
    _started.add(process)
    return WorkerHandle(number=number, process=process, exit_fd=_exit_descriptor(process), channel=channel, arena=arena)


_started: set[BaseProcess] = set()  # and not closed


def _disown() -> None:
    """In a forked child, which would otherwise terminate the workers of its parent when it exits."""
    multiprocessing.process._children.difference_update(_started)  # type: ignore[attr-defined]
    _started.clear()


os.register_at_fork(after_in_child=_disown)


def _exit_descriptor(process: BaseProcess) -> int:
    """A pidfd where there are any: the sentinel stays open as long as a process lives that the worker has forked."""
    try:
        return os.pidfd_open(process.pid or 0)
    except (AttributeError, OSError):
        return process.sentinel


@dataclass
class Ending:
    """What an engine leaves behind to be ended.

    Attributes:
        books: held by whoever looks at the handles.
        files: descriptors to close.
    """

    books: threading.RLock
    handles: dict[int, WorkerHandle]
    files: list[int]

    def end(self, patience: Patience) -> None:
        """End all workers and close the files."""
        with self.books:  # a thread that loads while the interpreter exits does not send anything beside this
            handles = self.handles
            for handle in handles.values():
                handle.arena.board[STOP] = 1
                handle.channel.send_last(pack_message(Stop()))
            end_processes({handle.exit_fd: handle.process for handle in handles.values()}, patience)
            for handle in handles.values():
                handle.close()
            handles.clear()
            for fd in self.files:
                os.close(fd)
