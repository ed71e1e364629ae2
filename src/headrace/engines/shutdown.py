"""Ends worker processes: asks, waits, terminates, kills. Bounded in time, and nothing is left."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess

from headrace.engines.timeouts import grace_s

_TERMINATE_S = 1.0


def end_processes(processes: Mapping[int, BaseProcess]) -> None:
    """Wait for processes that were asked to leave; end those that do not.

    Args:
        processes: by the descriptor that can be read from when they have ended.
    """
    left = _wait(processes, grace_s())
    for process in left.values():
        process.terminate()
    left = _wait(left, _TERMINATE_S)
    for process in left.values():
        process.kill()
    for process in processes.values():
        process.join()


def _wait(processes: Mapping[int, BaseProcess], seconds: float) -> dict[int, BaseProcess]:
    """The processes that are still there after so many seconds."""
    poll = select.poll()
    left = dict(processes)
    for fd in left:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + seconds
    while left:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        for fd, _ in poll.poll(remaining * 1000):
            poll.unregister(fd)
            del left[fd]
    return left
