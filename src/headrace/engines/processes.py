"""Runs tasks in worker processes: torch's meaning of `num_workers`."""

from __future__ import annotations

import multiprocessing
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

from headrace.base.errors import WorkerDiedError, WorkerError, warn_user
from headrace.base.messages import BadSample, BeginEpoch, Begun, Failed, Finished, Outcome, Pull, Skipped, Task
from headrace.batch.fetch import GATHERS
from headrace.data.shared_list import warn_of_huge_containers
from headrace.engines.deaths import Deaths
from headrace.engines.depth import Depth
from headrace.engines.engine import Interrupted, Job
from headrace.engines.handles import Ending, WorkerHandle, end_workers, launch_worker
from headrace.engines.inbox import take_apart
from headrace.engines.outbox import FailedRemotely, Report
from headrace.engines.process_worker import Resume, preload
from headrace.engines.reports import (
    cannot_start,
    describe_again,
    describe_death,
    describe_restart,
    describe_wait,
    most_deaths,
)
from headrace.engines.timeouts import Timeouts
from headrace.engines.worker import key_at, place_of
from headrace.transport.encoding import pack_message
from headrace.transport.shared_memory import create_file


class ProcessEngine:
    """Every worker is a process with its own copy of the dataset.

    Args:
        context: how to start processes: a `multiprocessing` context; None is the default one.
        timeout: seconds without any outcome after which `receive` raises; 0 waits for ever, and warns after a minute.
        restart: whether a worker that died is replaced; its tasks are done again, with the same results.
        on_restart: called for each worker that is replaced, with a text and its number.
        deepens: whether more than `prefetch_factor` tasks per worker may be in flight; see `Depth`.
    """

    works_ahead = True

    def __init__(
        self,
        workers: int,
        prefetch_factor: int,
        *,
        context: BaseContext | None = None,
        timeout: float = 0,
        restart: bool = False,
        on_restart: Callable[[str, int], None] | None = None,
        deepens: bool = False,
    ) -> None:
        self.workers = workers
        self.depth = self._usual_depth = workers * prefetch_factor
        self._ahead = Depth(self.depth, deepens=deepens)
        self.capacity = self._ahead.most
        self._context: BaseContext = multiprocessing.get_context() if context is None else context
        self._timeout = timeout
        self._restart = restart
        self._on_restart = on_restart
        self._close: weakref.finalize[..., Any] = weakref.finalize(self, _nothing)
        self._receiving = threading.RLock()  # held while waiting; `close` may come from another thread
        self._books = threading.RLock()  # held while looking at handles; other threads may submit, or end all
        self._is_closed = True
        self._is_interrupted = False
        self._wake_write = -1
        self._by_fd: dict[int, WorkerHandle] = {}

    def start(self, job: Job) -> None:
        self.close()
        if self._context.get_start_method() == "fork":
            warn_of_huge_containers(job.dataset, self.workers)
            preload(job)
        self._job = job
        self._epoch = 0
        self._is_interrupted = False
        self._broken: WorkerError | None = None
        self._ready: deque[Outcome] = deque()
        self._begun: set[int] = set()
        self._handles: dict[int, WorkerHandle] = {}
        self._deaths = Deaths(self.workers)
        self._is_torn = False
        self._ahead.start()
        self._bad: dict[int, tuple[BadSample, ...]] = {}
        self._timeouts = Timeouts(self._timeout)
        self._pending_warnings: deque[Callable[[], None]] = deque()  # of deaths; told when all is in order again
        self._poll = select.poll()
        try:
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_write, False)
            files = [self._wake_read, self._wake_write]
            self._ending = Ending(os.getpid(), self._books, self._handles, files)
            self._close = weakref.finalize(self, end_workers, self._ending)
            self._poll.register(self._wake_read, select.POLLIN)
            self._stacks = create_file()
            files.append(self._stacks)
            self._is_closed = False
            for number in range(self.workers):
                self._launch(number, None)
        except OSError as error:
            self.close()
            raise cannot_start(self.workers, error) from error
        except BaseException:
            self.close()
            raise

    def _launch(self, number: int, resume: Resume | None) -> WorkerHandle:
        with self._books:
            self._check_open()
            handle = launch_worker(
                self._context, self._job, number, self.workers, self._stacks, keeps_states=self._restart, resume=resume
            )
            self._handles[number] = handle
            for fd in (handle.channel.fileno(), handle.exit_fd):
                self._by_fd[fd] = handle
                self._poll.register(fd, select.POLLIN)
        return handle

    def _check_open(self) -> None:
        """Raises if there are no workers any more.

        Raises:
            WorkerError: they have failed, or were closed.
            SystemExit: the interpreter exits while this thread loads, which is to end without a word.
        """
        if self._broken is not None:
            raise self._broken
        if self._is_closed:
            raise WorkerError("The workers have been closed.")
        if self._ending.has_begun:
            raise SystemExit

    def submit(self, task: Task, *, more: bool = False) -> None:
        is_pull = type(task.keys) is Pull
        message = b"" if is_pull else pack_message(task)
        with self._books:
            self._check_open()
            handle = self._handles[task.worker]
            if is_pull:
                handle.pull(task)
            else:
                handle.put(task, message)
            if not more:
                self._send(handle)

    def flush(self) -> None:
        with self._books:
            for handle in self._handles.values():
                self._send(handle)

    def _send(self, handle: WorkerHandle) -> None:
        handle.flush()
        if handle.channel.has_unsent:
            self._wake()  # whoever waits must wait for the worker to take the rest, too

    def receive(self) -> Outcome:
        if self._ready:
            return self._ready.popleft()
        with self._receiving:
            while not self._ready:
                self._wait()
                if self._ahead.is_due():
                    self._adapt_depth()
            return self._ready.popleft()

    def _adapt_depth(self) -> None:
        self.depth = self._ahead.adapted(sum(handle.arena.leased_bytes for handle in self._handles.values()))
        for handle in self._handles.values():
            handle.arena.board[GATHERS] = self.depth > self._usual_depth

    def begin_epoch(self, shared_seed: int | None = None) -> None:
        if self._broken is not None:
            self.start(replace(self._job, shared_seed=shared_seed, starts=None))
            return
        with self._receiving:
            self._is_interrupted = False
            self._epoch += 1
            self._job = replace(self._job, shared_seed=shared_seed, starts=None)
            self._begun.clear()
            message = pack_message(BeginEpoch(self._epoch, shared_seed))
            # What is in flight is worked on all the same: it moves the workers' random generators, as in torch.
            with self._books:
                for handle in self._handles.values():
                    handle.channel.send(message)
            while len(self._begun) < self.workers:
                self._wait()
            self._ready.clear()
            self._bad.clear()

    def pids(self) -> dict[int, int]:
        """Of the workers that run now, by number."""
        return {handle.number: handle.process.pid or 0 for handle in self._by_fd.values()}

    def interrupt(self) -> None:
        if not self._is_closed:
            self._is_interrupted = True
            self._wake()

    def close(self) -> None:
        if not self._close.alive:
            return
        self._is_closed = True
        self._wake()
        with self._receiving:  # the thread that waits in `receive` has left it
            self._end()

    def _end(self) -> None:
        self._close()
        self._by_fd.clear()
        self._wake_write = -1  # the number may be somebody else's from now on

    def _wake(self) -> None:
        """Let `_wait` look at everything again."""
        with suppress(OSError):
            os.write(self._wake_write, b"!")

    def _wait(self) -> None:
        """Take in what has come, or wait for it."""
        if self._ending.owner != os.getpid():
            raise WorkerError("The workers belong to the process that this one was forked from. Iterate anew.")
        if self._is_torn:
            self._break(WorkerError("An interrupt hit the loader as it took in a batch. Start another epoch."))
        with self._books:
            self._check_open()
            for handle in self._handles.values():
                if handle.channel.has_unsent and handle.channel.fileno() in self._by_fd:
                    self._poll.modify(handle.channel.fileno(), select.POLLIN | select.POLLOUT)
        events = self._poll.poll(self._timeouts.seconds * 1000)
        self._check_open()
        if self._is_interrupted:
            self._is_interrupted = False
            raise Interrupted
        if not events:
            self._timeouts.complain(partial(describe_wait, self._handles.values(), self._stacks))
        with self._books:
            self._is_torn = True
            self._handle_events(events)
            self._is_torn = False
        while self._pending_warnings:
            self._pending_warnings.popleft()()

    def _handle_events(self, events: list[tuple[int, int]]) -> None:
        dead = []
        for fd, event in events:
            if fd == self._wake_read:
                os.read(fd, 4096)
                continue
            handle = self._by_fd.get(fd)
            if handle is None:
                continue
            if fd == handle.channel.fileno():
                if event & select.POLLOUT:
                    handle.channel.flush()
                    if not handle.channel.has_unsent:
                        self._poll.modify(fd, select.POLLIN)
                self._take_in(handle)
                if event & select.POLLHUP:
                    self._poll.unregister(fd)  # its end is told by the process itself
                    del self._by_fd[fd]
            else:
                dead.append(handle)
        for handle in dead:
            if self._broken is None:
                self._on_death(handle)

    def _take_in(self, handle: WorkerHandle, *, to_the_end: bool = False) -> None:
        for message in handle.channel.messages(to_the_end=to_the_end):
            arrived = take_apart(message, handle.arena)
            if isinstance(arrived, Report):
                self._ahead.taken_in += 1
                self._take_in_report(handle, arrived)
                continue
            self._ahead.taken_in += len(arrived)
            for finished in arrived:
                if handle.in_flight.pop(finished.number, None) is not None:  # else of an epoch that was given up
                    self._ready.append(finished)

    def _take_in_report(self, handle: WorkerHandle, report: Report) -> None:
        message = report.message
        if isinstance(message, Begun):
            handle.is_ready = True
            self._deaths.note_start()
            if message.epoch == self._epoch > 0:
                self._begun.add(handle.number)
                handle.states_at_start = report.states
                handle.in_flight.clear()
                handle.times_done = 0
            handle.states = report.states or handle.states
            return
        handle.states = report.states or handle.states
        self._deaths.note_outcome()
        task = handle.in_flight.pop(message.number, None)
        if task is None:
            return  # of an epoch that was given up
        if self._restart and self._job.iterable:
            handle.last_done = task
            handle.times_done += 1
        if isinstance(message, FailedRemotely):
            self._ready.append(Failed(message.number, message.error.rebuild(), message.state))
            return
        bad = self._bad.pop(message.number, ())
        if isinstance(message, Finished):
            message = message._replace(bad=(*bad, *message.bad))
        elif bad and isinstance(message, Skipped):
            message = Skipped(message.number, (*bad, *message.bad), message.state)
        self._ready.append(message)

    def _on_death(self, handle: WorkerHandle) -> None:
        self._take_in(handle, to_the_end=True)
        at_work = handle.at_work()
        handle.process.join()
        most = most_deaths(handle.process.exitcode)
        death = describe_death(handle.number, handle.process, at_work, handle.is_ready)
        self._forget(handle)
        if not self._restart:
            self._break(WorkerDiedError(death))
            return
        self._deaths.count(has_worked=bool(handle.is_ready or handle.times_done))
        if self._deaths.are_too_many:
            self._break(WorkerDiedError(f"{death} Workers die again and again, so no other one is started."))
            return
        if at_work is not None:
            self._blame(handle, *at_work, death, most)
        if self._broken is None:
            self._replace(handle)
            text = describe_restart(death)
            self._pending_warnings.append(
                partial(warn_user, text) if self._on_restart is None else partial(self._on_restart, text, handle.number)
            )

    def _replace(self, handle: WorkerHandle) -> None:
        """Let another worker do what a dead one had to do."""
        if self._job.iterable:
            resume = Resume(handle.states_at_start, handle.last_done, handle.times_done)
        else:
            resume = Resume(handle.states)
        try:
            replacement = self._launch(handle.number, resume)
        except OSError as error:
            self._break(cannot_start(self.workers, error))
            return
        replacement.inherit(handle)
        for task in handle.in_flight.values():
            replacement.in_flight[task.number] = task
            replacement.channel.send(pack_message(task))
        if self._epoch > 0 and handle.number not in self._begun:
            replacement.channel.send(pack_message(BeginEpoch(self._epoch, self._job.shared_seed)))

    def _blame(self, handle: WorkerHandle, task: Task, position: int, death: str, most: int) -> None:
        """Note which sample a worker died at. After so many deaths the sample is bad, and is not tried again."""
        nth = self._deaths.count_at(self._epoch, task.number, position)
        if nth == 1:
            return
        text = describe_again(death, nth, place_of(task, position))
        if nth < most:
            self._pending_warnings.append(
                partial(warn_user, f"{text} It is tried once more: somebody else may kill them.")
            )
            return
        bad = BadSample(key_at(task, position), task.number, handle.number, f"WorkerDiedError: {text}", text)
        if not self._job.skip_errors or self._job.iterable:
            del handle.in_flight[task.number]
            if self._job.iterable:
                self._break(WorkerDiedError(text))  # nothing can be left out of a stream
            else:
                self._ready.append(Failed(task.number, WorkerDiedError(text)))
        elif position < 0 or not self._job.batched:
            del handle.in_flight[task.number]
            self._ready.append(Skipped(task.number, (*self._bad.pop(task.number, ()), bad)))
        else:
            self._bad[task.number] = (*self._bad.get(task.number, ()), bad)
            handle.in_flight[task.number] = Task(task.number, task.keys, task.worker, (*task.leave_out, position))

    def _forget(self, handle: WorkerHandle) -> None:
        for fd in (handle.channel.fileno(), handle.exit_fd):
            if self._by_fd.pop(fd, None) is not None:
                self._poll.unregister(fd)
        del self._handles[handle.number]
        handle.close()

    def _break(self, error: WorkerError) -> None:
        """End all workers. What has arrived is still given out, then the error is raised."""
        self._broken = error
        self._is_torn = False
        self._end()


def _nothing() -> None:
    pass
