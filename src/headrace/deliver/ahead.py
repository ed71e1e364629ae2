"""Runs an iterator in a thread of its own, a little ahead of whoever iterates."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol, TypeAlias

from headrace.base.endings import Keeper, Patience
from headrace.base.interrupts import hold_interrupts


class Source(Protocol):
    """What can be run ahead. It may raise and go on; only `StopIteration` ends it.

    `close` may be called again, and from any thread; after it, a `next` that is waiting raises.
    """

    def __next__(self) -> Any: ...

    def close(self) -> None: ...


class Ahead:
    """The results of `function` for each batch of a source, made in one background thread.

    Guarantees: every batch, and every exception of `source` or `function` in the place of its batch, comes out once and
    in order; after an exception, iteration goes on. At most `depth` results are being made or waiting. A result is let
    go of when it is taken. An interrupt (Ctrl-C) while waiting loses nothing. The thread ends with the source, with
    `close`, with the last reference to this object, and before the interpreter does. For one consuming thread.

    Args:
        begin: called first in the thread, for its settings; what it raises is the only result.
    """

    def __init__(
        self,
        source: Source,
        function: Callable[[Any], Any],
        *,
        depth: int = 2,
        begin: Callable[[], None] | None = None,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}.")
        self._line = _Line(source, function, depth, begin)
        # The thread knows the line only: it must not keep this object alive.
        self._thread = threading.Thread(target=_run, args=(self._line,), name="headrace-deliver", daemon=True)
        with hold_interrupts():
            self._keeper = Keeper(self, partial(_close, self._line, self._thread))
            self._thread.start()

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Any:
        """The next result.

        Raises:
            Exception: what the source or the function raised for this batch; the next call goes on after it.
            StopIteration: the source has ended, or `close` was called.
        """
        outcome = self._line.take()
        match outcome:
            case _Made(result=result):
                return result
            case _Raised(error=error):
                try:
                    raise error
                finally:
                    del outcome, error  # the traceback knows this frame; so nothing is kept alive in a circle
        raise StopIteration

    def close(self) -> None:
        """Close the source and end the thread; results that were not taken are dropped. May be called again.

        Returns after some seconds even if `function` never does; the thread then ends when it can.
        """
        self._keeper.close()


@dataclass(frozen=True, slots=True)
class _Made:
    result: Any


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


class _Mark(Enum):
    END = auto()  # stays in the line for good


_Outcome: TypeAlias = _Made | _Raised | _Mark


class _Signal:
    """Wakes one waiting thread, or the next that waits. Whoever wakes must look again what there is to do.

    A bare lock: an interrupt while waiting leaves it as it was.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was set before
            self._unset.release()

    def wait(self) -> None:
        self._unset.acquire()


@dataclass(slots=True)
class _Line:
    """What the thread and its consumer share: the outcomes that wait, in order."""

    source: Source
    function: Callable[[Any], Any]
    depth: int
    begin: Callable[[], None] | None
    closed: bool = False
    outcomes: deque[_Outcome] = field(default_factory=deque)
    filled: _Signal = field(default_factory=_Signal)
    emptied: _Signal = field(default_factory=_Signal)

    def wait_for_room(self) -> None:
        while len(self.outcomes) >= self.depth and not self.closed:
            self.emptied.wait()

    def take(self) -> _Outcome:
        while not (outcomes := self.outcomes):
            self.filled.wait()
        outcome = outcomes[0]
        if outcome is _Mark.END:
            return outcome
        try:
            del outcomes[0]
            self.emptied.set()
        except BaseException:  # an interrupt: the outcome is for the next call
            if not outcomes or outcomes[0] is not outcome:
                outcomes.appendleft(outcome)
            raise
        return outcome

    def end(self) -> None:
        if self.closed:
            self.outcomes = deque()  # not emptied: its outcomes may be in the consumer's hands
        self.outcomes.append(_Mark.END)
        self.filled.set()


def _run(line: _Line) -> None:
    """The thread: makes one outcome after the other while there is room."""
    try:
        going_on = _begin(line)
        while going_on:
            line.wait_for_room()
            going_on = not line.closed and _make_one(line)
            line.filled.set()  # only now, when no frame of this thread holds the result any more
    finally:
        line.end()


def _begin(line: _Line) -> bool:
    try:
        if line.begin is not None:
            line.begin()
    except BaseException as error:  # noqa: BLE001 - raised where the consumer waits
        line.outcomes.append(_Raised(error))
        return False
    return True


def _make_one(line: _Line) -> bool:
    """Add the next outcome to the line; False at the end of the source."""
    try:
        batch = next(line.source)
    except StopIteration:
        return False
    except BaseException as error:  # noqa: BLE001 - raised in the place of the batch
        line.outcomes.append(_Raised(error))
        return True
    try:
        line.outcomes.append(_Made(line.function(batch)))
    except StopIteration as error:
        line.outcomes.append(_Raised(_not_the_end(error)))
    except BaseException as error:  # noqa: BLE001 - raised in the place of the batch
        line.outcomes.append(_Raised(error))
    return True


def _not_the_end(error: StopIteration) -> RuntimeError:
    """What to raise instead of a `StopIteration` of the function, which would end the epoch in silence."""
    failure = RuntimeError("Preparing a batch raised StopIteration. Raise another type of error there.")
    failure.__cause__ = error
    return failure


def _close(line: _Line, thread: threading.Thread, patience: Patience) -> None:
    line.closed = True
    line.emptied.set()
    try:
        line.source.close()
    finally:
        patience.join([thread])
        line.end()
