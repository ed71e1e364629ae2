"""Steps that Ctrl-C must not tear in two."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class hold_interrupts:  # noqa: N801 (used like a function)
    """While it is entered, SIGINT waits; on leaving it is raised, as if it came then.

    For steps of milliseconds, such as the start of a process, of which somebody must know the outcome. In other threads
    than the main one, where Python raises no signals, it does nothing.
    """

    def __enter__(self) -> None:
        self._has_come = False
        self._handler: Any = None
        if signal.getsignal(signal.SIGINT) is None:
            return  # a handler that is not Python's could not be put back
        try:
            self._handler = signal.signal(signal.SIGINT, self._note)
        except ValueError:
            return  # not the main thread

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._has_come = True

    def __exit__(self, *exc_info: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._has_come:
                signal.raise_signal(signal.SIGINT)


class block_interrupts:  # noqa: N801 (used like a function)
    """While it is entered, processes that this thread starts are born deaf to SIGINT, until they unblock it."""

    def __enter__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def __exit__(self, *exc_info: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def unblock_interrupts() -> None:
    """Hear SIGINT again, in a process that was started while it was blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
