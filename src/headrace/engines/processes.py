"""Runs tasks in worker processes: torch's meaning of `num_workers`."""

from __future__ import annotations

import multiprocessing
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext

from headrace.base.endings import Keeper, await_dropped
from headrace.base.errors import WorkerError
from headrace.base.interrupts import hold_interrupts
from headrace.base.messages import Outcome, Pull, Task
from headrace.batch.fetch import GATHERS
from headrace.data.shared_list import warn_of_huge_containers
from headrace.engines.depth import Depth
from headrace.engines.engine import Interrupted, Job
from headrace.engines.fleet import Fleet, Loss
from headrace.engines.handles import Ending, WorkerHandle, launch_worker
from headrace.engines.inbox import take_apart
from headrace.engines.outbox import Report
from headrace.engines.process_worker import preload
from headrace.engines.reports import (
    cannot_start,
    describe_death,
    describe_wait,
    most_deaths,
)
from headrace.engines.seat import Resume
from headrace.engines.timeouts import Timeouts
from headrace.transport.encoding import pack_message
from headrace.transport.shared_memory import create_file


class ProcessEngine:
    """Every worker is a process with its own copy of the dataset.

    Args:
        context: how to start processes: a `multiprocessing` context; None is the default one.
        timeout: seconds without any outcome after which `receive` raises; 0 waits for ever, and warns after a minute.
        restart: whether a worker that died is replaced; its tasks are done again, with the same results.
        max_restarts: how many are replaced in a row, with no batch in between; None is 30 and one for each worker.
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
        max_restarts: int | None = None,
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
        self._max_restarts = max_restarts
        self._on_restart = on_restart
        self._keeper: Keeper | None = None  # of the workers, as long as they have not ended
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
        self._fleet = Fleet(
            job, self.workers, restart=self._restart, max_restarts=self._max_restarts, on_restart=self._on_restart
        )
        self._ready = self._fleet.ready
        self._is_interrupted = False
        self._broken: WorkerError | None = None
        self._handles: dict[int, WorkerHandle] = {}
        self._is_torn = False
        self._ahead.start()
        self._timeouts = Timeouts(self._timeout)
        self._owner = os.getpid()
        self._poll = select.poll()
        await_dropped()
        try:
            with hold_interrupts():
                self._open_files()
            for number in range(self.workers):
                self._launch(number, job)
        except OSError as error:
            self.close()
            raise cannot_start(self.workers, error) from error
        except BaseException:
            self._note_wait(in_vain=True)  # nobody has got anything from the workers yet
            self.close()
            raise

    def _open_files(self) -> None:
        """Make the keeper of the workers, and what they all have in common."""
        files: list[int] = []
        self._keeper = Keeper(self, Ending(self._books, self._handles, files).end)
        self._is_closed = False
        self._wake_read, self._wake_write = os.pipe()
        files += [self._wake_read, self._wake_write]
        os.set_blocking(self._wake_write, False)
        self._poll.register(self._wake_read, select.POLLIN)
        self._stacks = create_file()
        files.append(self._stacks)

    def _launch(self, number: int, job: Job, resume: Resume | None = None) -> WorkerHandle:
        with self._books, hold_interrupts():
            self._check_open()
            handle = launch_worker(
                self._context, job, number, self.workers, self._stacks, keeps_states=self._restart, resume=resume
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
        if self._keeper is None or self._keeper.is_ending:
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
            try:
                while not self._ready:
                    self._wait()
                    if self._ahead.is_due():
                        self._adapt_depth()
            except KeyboardInterrupt:
                self._note_wait(in_vain=True)
                raise
            self._note_wait(in_vain=False)
            return self._ready.popleft()

    def _adapt_depth(self) -> None:
        self.depth = self._ahead.adapted(sum(handle.arena.leased_bytes for handle in self._handles.values()))
        for handle in self._handles.values():
            handle.arena.board[GATHERS] = self.depth > self._usual_depth

    def begin_epoch(self, shared_seed: int | None = None) -> None:
        if self._broken is not None or self._keeper is None:  # they have failed, or were closed
            self.start(replace(self._fleet.job, shared_seed=shared_seed, starts=None))
            return
        with self._receiving:
            self._is_interrupted = False
            message = pack_message(self._fleet.begin_epoch(shared_seed))
            # What is in flight is worked on all the same: it moves the workers' random generators, as in torch.
            with self._books:
                for handle in self._handles.values():
                    handle.channel.send(message)
            while not self._fleet.all_begun:
                self._wait()
            self._fleet.forget_outcomes()

    def pids(self) -> dict[int, int]:
        """Of the workers that run now, by number."""
        return {handle.number: handle.process.pid or 0 for handle in self._by_fd.values()}

    def interrupt(self) -> None:
        if not self._is_closed:
            self._is_interrupted = True
            self._wake()

    def close(self) -> None:
        keeper = self._keeper
        if keeper is None:
            return
        self._is_closed = True
        self._wake()
        with self._receiving:  # the thread that waits in `receive` has left it
            self._let_go()
            keeper.close()
        self._keeper = None

    def _let_go(self) -> None:
        """Of what is about to be closed: the numbers may be somebody else's from then on."""
        self._by_fd.clear()
        self._wake_write = -1

    def _note_wait(self, *, in_vain: bool) -> None:
        """Have little patience with the workers when they are to end; or as much as ever."""
        if self._keeper is not None:
            self._keeper.patience.is_vain = in_vain

    def _wake(self) -> None:
        """Let `_wait` look at everything again."""
        with suppress(OSError):
            os.write(self._wake_write, b"!")

    def _wait(self) -> None:
        """Take in what has come, or wait for it."""
        if self._owner != os.getpid():
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
            if self._timeout:
                self._note_wait(in_vain=True)  # a worker that is known to be stuck is not waited for again
            self._timeouts.complain(partial(describe_wait, self._handles.values(), self._stacks))
        with self._books:
            self._is_torn = True
            self._handle_events(events)
            self._is_torn = False
        self._fleet.warn()

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
                self._fleet.take_in(handle, arrived)
                continue
            self._ahead.taken_in += len(arrived)
            for finished in arrived:
                if handle.in_flight.pop(finished.number, None) is not None:  # else of an epoch that was given up
                    self._ready.append(finished)

    def _on_death(self, handle: WorkerHandle) -> None:
        self._take_in(handle, to_the_end=True)
        at_work = handle.at_work()
        handle.process.join()
        death = describe_death(handle.number, handle.process, at_work, handle.is_ready)
        loss = Loss(death, at_work, most_deaths(handle.process.exitcode))
        self._forget(handle)
        error = self._fleet.lose(handle, loss)
        if error is None:
            self._replace(handle)
        else:
            self._break(error)

    def _replace(self, handle: WorkerHandle) -> None:
        """Let another worker do what a dead one had to do."""
        try:
            replacement = self._launch(handle.number, self._fleet.job_of(handle), self._fleet.resume(handle))
        except OSError as error:
            self._break(cannot_start(self.workers, error))
            return
        replacement.inherit(handle)
        replacement.in_flight.update(handle.in_flight)
        for message in self._fleet.unfinished(handle):
            replacement.channel.send(pack_message(message))

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
        self._let_go()
        if self._keeper is not None:
            self._keeper.begin()  # the end is not waited for here: it needs the books, and somebody may hold them
