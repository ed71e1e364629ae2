"""The running loop for streams: windows go out to the workers, and come back as the batches of one reader.

A worker reads a window, transforms its rows, and tells how many there are. From the sum of all windows before, it is
known then where the borders of the batches fall. The worker makes all batches that lie within its window; the few rows
before the first border and after the last one are sent as they are, and joined here with those of the neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.base.messages import BadSample, Failed, Finished, Outcome, Task
from headrace.base.progress import Progress
from headrace.engines.engine import Engine
from headrace.sources.source import Chunk
from headrace.streams.fetch import CutBatches, ReadWindow, SendEdges, WindowRef
from headrace.streams.rows import JoinedRows

_ROWS_AT_ONCE = 4096  # that a worker makes batches of before it sends them
_WINDOWS_AHEAD = 2  # per worker


@dataclass
class _OpenWindow:
    """A window that is being read or cut.

    Attributes:
        first: the row that it begins with; the ones before were given in another life.
        n_rows: None until the worker has told.
        parts: what the worker has sent so far, by the order in which it was asked for.
        n_asked: how many parts were asked for.
        head: the first row after those that are joined with rows of other windows.
        end: the first row after the last whole batch.
        first_batch: the number of the batch that begins at `head`.
        is_lost: whether it could not be read, and is left out.
    """

    ref: WindowRef
    lane: int
    first: int = 0
    n_rows: int | None = None
    parts: dict[int, Any] = field(default_factory=dict)
    n_asked: int = 0
    n_given: int = 0
    head: int = 0
    end: int = 0
    first_batch: int = 0
    is_lost: bool = False


class WindowFlow:
    """One epoch of batches of a stream, as an iterator.

    Guarantees: the batches are those that one reader of all windows would cut, whatever the workers' number and speed;
    a bounded number of windows is open; the state after each batch is the window and the row that come next.

    Args:
        windows: the windows to read.
        first_row: of the first of them, to begin with.
        size: rows in a batch; None for single rows.
        join: makes a batch of the rows of several windows, given the epoch and the number of the batch.
        most_batches: after which the epoch is over; None for all.
        tell_bad: hears of rows that were left out.
    """

    def __init__(
        self,
        windows: Iterator[WindowRef],
        engine: Engine,
        progress: Progress,
        *,
        size: int | None,
        drop_last: bool,
        join: Callable[[Chunk, int, int], Outcome],
        first_row: int = 0,
        most_batches: int | None = None,
        tell_bad: Callable[[tuple[BadSample, ...]], None] | None = None,
    ) -> None:
        self._windows = windows
        self._engine = engine
        self._progress = progress
        self._size = size or 1
        self._is_single = size is None
        self._drop_last = drop_last
        self._join = join
        self._next_first_row = first_row
        self._most_batches = most_batches
        self._tell_bad = tell_bad
        self._open: deque[_OpenWindow] = deque()
        self._asked: dict[int, tuple[_OpenWindow, int]] = {}  # by the number of the task
        self._in_flight = [0] * max(1, engine.workers)
        self._number = 0
        self._n_planned = progress.batches  # batches up to the last window that was cut
        self._planned_rest = 0  # rows that are left over of all windows that were cut
        self._rest: list[Chunk] = []  # and those of them that have arrived, for the next batch
        self._due: deque[tuple[Any, tuple[int, int]]] = deque()  # batches, and the place after each
        self._windows_ended = False

    def __iter__(self) -> WindowFlow:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: what reading or the user's code raised; the epoch is over then.
            StopIteration: the epoch is over.
        """
        if self._most_batches is not None and self._progress.batches >= self._most_batches:
            self.abandon()
        try:
            while not self._due:
                if not self._open and self._windows_ended:
                    self._make_last()
                    break
                self.submit_tasks()
                if self._open:
                    self._receive()
                    self._collect()
        except BaseException:
            self.abandon()  # what is left does not fit together any more
            raise
        if not self._due:
            raise StopIteration
        batch, place = self._due.popleft()
        self._progress.give(self._progress.batches)
        self._progress.place = place
        return batch

    def submit_tasks(self) -> None:
        """Open as many windows as may be open."""
        most = _WINDOWS_AHEAD * self._engine.workers if self._engine.works_ahead else 1
        while len(self._open) < most and not self._windows_ended:
            ref = next(self._windows, None)
            if ref is None:
                self._windows_ended = True
                break
            lane = min(range(len(self._in_flight)), key=self._in_flight.__getitem__)
            window = _OpenWindow(ref, lane, self._next_first_row)
            self._next_first_row = 0
            self._open.append(window)
            self._ask(window, ReadWindow(ref))

    def _ask(self, window: _OpenWindow, keys: Any) -> None:
        self._engine.submit(Task(self._number, keys, window.lane))
        self._asked[self._number] = (window, window.n_asked)
        self._in_flight[window.lane] += 1
        window.n_asked += 1
        self._number += 1

    def _receive(self) -> None:
        outcome = self._engine.receive()
        window, part = self._asked.pop(outcome.number)
        self._in_flight[window.lane] -= 1
        value = self._value_of(outcome)
        if window.n_rows is None:
            window.is_lost = value is None
            window.n_rows = max(value or 0, window.first)
            self._cut_windows()
        else:
            window.parts[part] = value

    def _value_of(self, outcome: Outcome) -> Any:
        """What a worker gives; None if it was left out, because it raised."""
        if isinstance(outcome, Failed):
            raise outcome.error
        if outcome.bad and self._tell_bad is not None:
            self._tell_bad(outcome.bad)
        return outcome.batch if isinstance(outcome, Finished) else None

    def _cut_windows(self) -> None:
        """Ask for the batches of all windows whose borders are known now."""
        for window in self._open:
            if window.n_rows is None:
                return
            if window.n_asked > 1 or window.is_lost:
                continue
            n = window.n_rows - window.first
            missing = -self._planned_rest % self._size
            window.head = window.first + min(missing, n) if self._planned_rest else window.first
            window.end = window.n_rows - (window.n_rows - window.head) % self._size
            window.first_batch = self._n_planned + (1 if window.head > window.first and missing <= n else 0)
            self._n_planned += (self._planned_rest + n) // self._size
            self._planned_rest = (self._planned_rest + n) % self._size
            self._ask_for_batches(window)

    def _ask_for_batches(self, window: _OpenWindow) -> None:
        at_once = max(1, _ROWS_AT_ONCE // self._size) * self._size
        for start in range(window.head, window.end, at_once):
            stop = min(start + at_once, window.end)
            number = window.first_batch + (start - window.head) // self._size
            self._ask(window, CutBatches(window.ref, start, stop, self._size, number))
        self._ask(window, SendEdges(window.ref, window.first, window.head, window.end))

    def _collect(self) -> None:
        """Take what has arrived, in order."""
        while self._open:
            window = self._open[0]
            if window.is_lost:
                self._open.popleft()
                continue
            if window.n_rows is None or window.n_asked - 1 not in window.parts:
                if not self._collect_early(window):
                    return
                continue
            self._finish(window)
            self._open.popleft()

    def _collect_early(self, window: _OpenWindow) -> bool:
        """Take the next part of a window that has not come as a whole, if its beginning is not to be joined."""
        part = window.n_given + 1
        if window.n_rows is None or window.head != window.first or self._rest or part >= window.n_asked - 1:
            return False
        if part not in window.parts:
            return False
        self._take_batches(window, window.parts.pop(part))
        window.n_given += 1
        return True

    def _finish(self, window: _OpenWindow) -> None:
        head, tail = window.parts.pop(window.n_asked - 1) or (JoinedRows([]), JoinedRows([]))
        if len(head):
            self._rest.append(head)
            if sum(map(len, self._rest)) == self._size:
                self._make_joined(window.first_batch - 1, (window.ref.number, window.head))
        for part in range(window.n_given + 1, window.n_asked - 1):
            self._take_batches(window, window.parts.pop(part))
            window.n_given += 1
        if len(tail):
            self._rest.append(tail)

    def _take_batches(self, window: _OpenWindow, batches: list[Any] | None) -> None:
        """Give out what a worker has made; None if it was left out, because it raised."""
        at_once = max(1, _ROWS_AT_ONCE // self._size) * self._size
        row = window.head + window.n_given * at_once
        for batch in batches or ():
            row += self._size
            self._due.append((batch, (window.ref.number, row)))

    def _make_joined(self, number: int, place: tuple[int, int]) -> None:
        rows, self._rest = JoinedRows(self._rest), []
        outcome = self._join(rows, self._progress.epoch, number)
        batch = self._value_of(outcome)
        if isinstance(outcome, Finished):
            self._due.append((batch, place))

    def _make_last(self) -> None:
        if self._rest and not self._drop_last:
            self._make_joined(self._n_planned, (-1, 0))

    def abandon(self) -> None:
        """Give up the rest of the epoch, but leave the engine for the next one."""
        self._windows_ended = True
        self._open.clear()
        self._rest.clear()
        self._due.clear()
        self._asked.clear()

    def close(self) -> None:
        """Give up the rest of the epoch, and end the engine."""
        self.abandon()
        self._engine.close()
