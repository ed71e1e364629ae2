"""Who ends what a loader has started: one keeper for each, which waits where no signal is raised.

A loader that is dropped is ended by nobody who could wait: a weak-reference callback runs anywhere in the main thread,
and an interrupt that is raised in it is lost. So the callback is a function in C that only wakes the keeper, a thread.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

_GRACE_S = 5.0
_GRACE_URGENT_S = 0.2
_TERMINATE_S = 1.0
_TERMINATE_URGENT_S = 0.3
_LOOK_S = 0.02


class Patience:
    """How long what is to end is waited for.

    Attributes:
        is_urgent: somebody who waits for the end was interrupted, or the interpreter exits by Ctrl-C; so for good.
        is_vain: a wait for a batch was interrupted or timed out, and none has come since.
    """

    def __init__(self) -> None:
        self.is_urgent = False
        self.is_vain = False

    @property
    def grace_s(self) -> float:
        """Seconds that a worker gets to finish the sample it is at."""
        return _GRACE_URGENT_S if self.is_urgent or self.is_vain else _GRACE_S

    @property
    def terminate_s(self) -> float:
        """Seconds that a process gets after SIGTERM."""
        return _TERMINATE_URGENT_S if self.is_urgent or self.is_vain else _TERMINATE_S

    def join(self, threads: Iterable[threading.Thread]) -> None:
        """Wait for threads to end; one that takes longer than the grace is left behind."""
        begun = time.monotonic()
        for thread in threads:
            while thread.is_alive() and (left := begun + self.grace_s - time.monotonic()) > 0:
                thread.join(min(left, _LOOK_S))


class Keeper:
    """Ends what belongs to `owner`: when that is closed or collected as garbage, or the interpreter exits.

    Guarantees: `end` is called once, in a thread of its own; whoever waits for it can be interrupted, and hastens it
    thereby; nobody waits in a callback. In a forked child nothing is ended: all is its parent's.

    Args:
        end: is given the patience to have; must not refer to `owner`.
        at_exit: whether what is still in use is ended when the interpreter exits; what was dropped is, anyway.
    """

    def __init__(self, owner: Any, end: Callable[[Patience], None], *, at_exit: bool = True) -> None:
        if _exit.has_begun:
            raise SystemExit  # a thread that starts to load while the interpreter exits is to end without a word
        self.patience = Patience()
        self.is_ending = False
        self._end = end
        self._at_exit = at_exit
        self._pid = os.getpid()
        self._starter = threading.get_ident()
        self._error: BaseException | None = None
        self._told: SimpleQueue[Any] = SimpleQueue()
        self._owner = weakref.ref(owner, self._told.put)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-keeper", daemon=True)
        _exit.register()
        for keeper in list(_keepers):
            if not keeper._thread.is_alive():
                _keepers.discard(keeper)
        self._thread.start()
        _keepers.add(self)

    def _run(self) -> None:
        self._told.get()
        self.is_ending = True
        try:
            self._end(self.patience)
        except BaseException as error:  # noqa: BLE001 (raised where the end is waited for)
            self._error = error
        finally:
            del self._end
            self._ended.set()

    def begin(self) -> None:
        """Let the end begin; returns at once."""
        self.is_ending = True
        self._told.put(None)

    def close(self) -> None:
        """Begin the end if nobody has, and wait for it.

        Raises:
            BaseException: what `end` raised, once.
        """
        if self._pid != os.getpid():
            return
        if not self.is_ending:
            self.begin()
        self.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait until all has ended. Who is interrupted here does not wait any longer, nor long at exit."""
        try:
            self._ended.wait()
            self._thread.join()
            _keepers.discard(self)
        except KeyboardInterrupt:
            self.patience.is_urgent = True
            raise

    def _was_dropped(self, thread: int) -> bool:
        return self._starter == thread and self._is_due()

    def _is_due(self, *, at_exit: bool = False) -> bool:
        return self.is_ending or self._owner() is None or (at_exit and self._at_exit)


_keepers: set[Keeper] = set()


def await_dropped() -> None:
    """Wait for the ends of what this thread started and dropped: so workers of two epochs are not in each other's way.

    Not of what other threads started: a worker thread with a loader of its own would wait for its own end.
    """
    thread = threading.get_ident()
    while dropped := [keeper for keeper in list(_keepers) if keeper._was_dropped(thread)]:
        for keeper in dropped:
            keeper.wait()  # what it ends may have held others, which are dropped thereby


class _Exit:
    has_begun = False
    _finalizer: Any = None

    def register(self) -> None:
        """Be called before all exit functions so far: `multiprocessing`'s would end workers in its own way.

        A child of `multiprocessing` runs no exit functions but that one, which calls its finalizers first.
        """
        atexit.unregister(_end_all)
        atexit.register(_end_all)
        util: Any = sys.modules.get("multiprocessing.util")
        if util is not None and (self._finalizer is None or not self._finalizer.still_active()):
            self._finalizer = util.Finalize(None, _end_all, exitpriority=100)


_exit = _Exit()


def _end_all() -> None:
    """End everything before the interpreter does, soon if it exits by Ctrl-C or is interrupted here."""
    _exit.has_begun = True
    interrupt: BaseException | None = None
    keepers = [keeper for keeper in list(_keepers) if keeper._is_due(at_exit=True)]
    is_urgent = getattr(sys, "last_type", None) is KeyboardInterrupt
    for keeper in keepers:
        keeper.patience.is_urgent |= is_urgent
        keeper.begin()
    for keeper in keepers:
        while not keeper._ended.is_set():
            try:
                keeper.wait()
            except KeyboardInterrupt as error:
                interrupt = error
                for other in keepers:
                    other.patience.is_urgent = True
    if interrupt is not None:
        raise interrupt.with_traceback(None)


os.register_at_fork(after_in_child=_keepers.clear)
