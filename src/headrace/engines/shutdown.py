"""Ends worker processes: asks, waits, terminates, kills. Bounded in time, and nothing is left."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess

_GRACE_S = 5.0
_GRACE_INTERRUPTED_S = 0.2
_TERMINATE_S = 1.0


def end_processes(processes: Mapping[int, BaseProcess]) -> None:
    """Wait for processes that were asked to leave; end those that do not.

    Args:
        processes: by the descriptor that can be read from when they have ended.
    """
    grace = _GRACE_INTERRUPTED_S if _is_interrupted() else _GRACE_S
    left = _wait(processes, grace)
    for process in left.values():
        process.terminate()
    left = _wait(left, _TERMINATE_S)
    for process in left.values():
        process.kill()
    for process in processes.values():
        process.join()


def _is_interrupted() -> bool:
    """Whether the user pressed Ctrl-C, and so does not want to wait."""
    last: object = getattr(sys, "last_type", None)
    return sys.exc_info()[0] is KeyboardInterrupt or last is KeyboardInterrupt


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
