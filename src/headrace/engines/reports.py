"""What is told when workers die, get stuck, or cannot be started."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from headrace.base.errors import WorkerStartError
from headrace.base.messages import Task
from headrace.batch.fetch import LISTENS
from headrace.engines.launch import GUARD_HINT, NO_GUARD, why_imported
from headrace.engines.process_worker import LOST_CONNECTION, STACK_SIGNAL
from headrace.engines.worker import place_of

if TYPE_CHECKING:
    from headrace.engines.handles import WorkerHandle

_STACK_WAIT_S = 0.5
_HINTS = {
    signal.SIGKILL: "The kernel kills processes when memory runs out: see `dmesg`, use fewer workers, smaller batches "
    "or a smaller prefetch_factor.",
    signal.SIGBUS: "That happens when shared memory, or the disk under a memory-mapped file, is full.",
    signal.SIGSEGV: "That is a crash in compiled code: of a library that the dataset uses, or of one that does not "
    "work in forked processes (try multiprocessing_context='spawn').",
}


def describe_death(number: int, process: BaseProcess, at_work: tuple[Task, int] | None, was_ready: bool) -> str:
    """How and where a worker died."""
    code = process.exitcode or 0
    if code < 0:
        number_of_signal = -code
        name = signal.Signals(number_of_signal).name if number_of_signal in set(signal.Signals) else str(-code)
        how = f"was killed by signal {name}"
        hint = _HINTS.get(number_of_signal, "")  # type: ignore[call-overload]
    elif code == LOST_CONNECTION:
        how = "lost its connection to the loader"
        hint = "Does the dataset close file descriptors that are not its own?"
    elif code == NO_GUARD:
        how = "would have started workers of its own"
        hint = _hint_to_guard(process)
    else:
        how = f"left with exit code {code}"
        hint = "That is what sys.exit() and os._exit() do." if was_ready else _hint_of_start(process)
    where = "as it started" if not was_ready else "while it was idle"
    if at_work is not None:
        where = f"at {place_of(*at_work)}"
    return f"DataLoader worker {number} (pid(s) {process.pid}) exited unexpectedly: it {how} {where}. {hint}".rstrip()


def _hint_of_start(process: BaseProcess) -> str:
    return f"If it raised an error, that is on stderr. {_hint_to_guard(process)}"


def _hint_to_guard(process: BaseProcess) -> str:
    """Of a guard only workers know that import the script: not forked ones, nor those that get all they need."""
    reason = why_imported(process)
    return "" if reason is None else f"It imports the script, because {reason}. {GUARD_HINT}"


def most_deaths(exit_code: int | None) -> int:
    """After how many deaths at one sample it is not tried again: where workers are killed, two may meet by chance."""
    return 3 if exit_code in (-signal.SIGKILL, -signal.SIGTERM) else 2


def describe_wait(handles: Iterable[WorkerHandle], stacks: int) -> str:
    """Which workers are at work, on which sample, and where in the code."""
    lines = []
    for handle in handles:
        at_work, stack = handle.at_work(), ""
        if at_work is not None or not handle.is_ready or handle.in_flight:
            stack = _stack_of(handle, stacks)
        who = f"Worker {handle.number} (pid {handle.process.pid})"
        if at_work is not None:
            lines.append(f"{who} is at {place_of(*at_work)}:\n{stack}")
        elif not handle.is_ready:
            lines.append(f"{who} has not started yet:\n{stack}")
        elif handle.in_flight:
            lines.append(f"{who} is between two batches:\n{stack}")
    return "\n".join(lines) or "All workers are idle."


def _stack_of(handle: WorkerHandle, stacks: int) -> str:
    """The stack of a worker, which writes it into the file `stacks` on a signal, even while it is in compiled code."""
    if not handle.arena.board[LISTENS]:
        return "(it is being imported)"  # the signal would kill it
    with suppress(OSError):
        os.ftruncate(stacks, 0)
        os.lseek(stacks, 0, os.SEEK_SET)
        os.kill(handle.process.pid or 0, STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_WAIT_S
        size = 0
        while time.monotonic() < deadline:
            time.sleep(0.01)
            if size and os.fstat(stacks).st_size == size:
                break
            size = os.fstat(stacks).st_size
        text = os.pread(stacks, 2**16, 0).decode(errors="replace").strip()
        if text:
            return text
    return "(its stack cannot be shown)"


def cannot_start(workers: int, error: OSError) -> WorkerStartError:
    """The error for workers that the system does not let start."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return WorkerStartError(f"A worker process could not be started: {error}")
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return WorkerStartError(
        f"Too many open files: {workers} workers need about {7 * workers + 5} file descriptors, and this process may "
        f"have {limit} in all. Raise the limit with `ulimit -n` in the shell, or use fewer workers."
    )
