"""Ends worker processes: asks, waits, terminates, kills. Bounded in time, and nothing is left."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess

from headrace.base.endings import Patience

_LOOK_S = 0.02  # the patience may end meanwhile


def end_processes(processes: Mapping[int, BaseProcess], patience: Patience) -> None:
    """Wait for processes that were asked to leave; end those that do not.

    Args:
        processes: by the descriptor that can be read from when they have ended.
    """
    left = _wait(processes, lambda: patience.grace_s)
    for process in left.values():
        process.terminate()
    left = _wait(left, lambda: patience.terminate_s)
    for process in left.values():
        process.kill()
    for process in processes.values():
        reap(process)


def reap(process: BaseProcess) -> None:
    """Wait for a process that ends, until its exit code is known: another thread may be about to learn it first."""
    process.join()
    while process.exitcode is None:
        time.sleep(0.001)


def _wait(processes: Mapping[int, BaseProcess], seconds: Callable[[], float]) -> dict[int, BaseProcess]:
    """The processes that are still there after so many seconds."""
    poll = select.poll()
    left = dict(processes)
    for fd in left:
        poll.register(fd, select.POLLIN)
    begun = time.monotonic()
    while left and (remaining := begun + seconds() - time.monotonic()) > 0:
        for fd, _ in poll.poll(min(remaining, _LOOK_S) * 1000):
            poll.unregister(fd)
            del left[fd]
    return left
