"""The running loop for streams: windows go out to the workers, and come back as the batches of one reader.

A worker reads a window, transforms its rows, and tells how many there are, unless the source has told. From the sum of
all windows before, it is known then where the borders of the batches fall. The worker makes all batches that lie within
its window; the few rows before the first border and after the last one are sent as they are, and joined here with those
of the neighbours. So what it has sent can be given out at once, in the order in which it was asked for. Of columns to
which nothing is done, the loop makes all batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from headrace.base.errors import add_note
from headrace.base.messages import BadSample, Failed, Finished, Outcome, Task, opened
from headrace.base.progress import Progress
from headrace.engines.engine import Engine, Timekeeper
from headrace.sources.source import Chunk
from headrace.streams.borders import BatchBorders, Borders, ColumnBorders
from headrace.streams.column_parts import ColumnCutter
from headrace.streams.messages import (
    Counted,
    CountRows,
    CutBatches,
    JoinBatch,
    ReadWindow,
    SendColumns,
    SendRows,
    Span,
    WindowRead,
)
from headrace.streams.open_window import LOST, Account, Due, EmptyWindows, OpenWindow, RestRows, may_open_more
from headrace.streams.windows import Share
from headrace.window_tasks import WindowTasks

_ROWS_AT_ONCE = 4096  # that a worker makes batches of before it sends them
_BYTES_AT_ONCE = 2 << 20  # that the loop itself reads before it gives them out: while they are in the cache
_BYTES_SENT_AT_ONCE = 8 << 20  # by a worker


class WindowFlow:
    """One epoch of batches of a stream, as an iterator.

    Guarantees: the batches, and what is told of bad rows, are those of one reader of all windows, whatever the workers'
    number and speed; a bounded number of windows is open; the state after each batch is the window and the row that
    come next.

    Args:
        windows: what to read; asked for a few at a time.
        place: the index of the first of them, and the row to begin with.
        size: rows in a batch.
        row_length: if rows are packed, the tokens in each: then it is tokens that are counted.
        drops_rest: whether a last row that is shorter is left out.
        known_rows: tells how many rows a window will have, if that is known: then batches are asked for without waiting
            until it is read.
        join: makes a batch of the rows of several windows, given the epoch and the number of the batch.
        finish: makes a batch of columns; None if workers make them.
        most_empty: see `EmptyWindows`.
        tell_bad: hears of rows that were left out.
        account: hears of every batch.
        timekeeper: hears of the tasks that were timed.
    """

    def __init__(
        self,
        windows: Iterable[Share],
        engine: Engine,
        progress: Progress,
        *,
        size: int,
        drop_last: bool,
        join: Callable[[Chunk, int, int], Outcome],
        finish: Callable[[dict[str, Any]], Any] | None = None,
        place: tuple[int, int] = (0, 0),
        row_length: int = 1,
        drops_rest: bool = False,
        known_rows: Callable[[Share], int | None] | None = None,
        note_rows: Callable[[Share, int], None] | None = None,
        most_empty: Callable[[], int | None] | None = None,
        tell_bad: Callable[[tuple[BadSample, ...]], None] | None = None,
        account: Account | None = None,
        timekeeper: Timekeeper | None = None,
    ) -> None:
        self._windows = iter(windows)
        self._engine = engine
        self._progress = progress
        self._row_length = row_length
        self._size = size * row_length
        self._drop_last, self._drops_rest = drop_last, drops_rest
        self._join = join
        self._cutter = None if finish is None else ColumnCutter(size, finish)
        self._next_index, self._next_first = place
        self._known_rows, self._note_rows = known_rows, note_rows
        self._empty = EmptyWindows(most_empty)
        self._tell_bad = tell_bad
        self._account = account
        self._timekeeper = timekeeper
        self._open: deque[OpenWindow] = deque()
        self._tasks = WindowTasks(engine)
        self._borders: Borders = BatchBorders(self._size, progress.batches) if finish is None else ColumnBorders()
        self._n_due = progress.batches  # batches that have arrived
        self._rest = RestRows()  # and rows for the next one
        self._due: deque[Due] = deque()
        self._batches: Iterator[Any] = iter(())  # of what was due last; some may be `LOST`
        self._places: Iterator[tuple[int, int]] = iter(())
        self._spans: Iterator[tuple[Span, ...]] = iter(())
        self._where: Callable[[], str] | None = None  # they are made of, if that is done here
        self._untold: tuple[BadSample, ...] = ()
        self._error: Exception | None = None
        self._windows_ended = False

    @property
    def latest(self) -> int:
        """The number of the batch that was given last."""
        return self._progress.batches - 1

    def __iter__(self) -> WindowFlow:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: what reading or the user's code raised, after all batches before it; the epoch is over then.
            StopIteration: the epoch is over.
        """
        progress = self._progress
        while True:
            try:
                for batch in self._batches:
                    progress.batches += 1
                    progress.place = next(self._places)
                    if self._account is not None:
                        self._account.give(self.latest, next(self._spans), is_lost=batch is LOST)
                    if batch is not LOST:
                        return batch
            except BaseException as error:
                if self._where is not None and isinstance(error, Exception):
                    add_note(error, f"in {self._where()}")
                self.abandon()  # the batches that were to come next are gone
                raise
            if not self._go_on():
                self._end()
                raise StopIteration

    def _go_on(self) -> bool:
        """Begin with the batches that are due next; False if there are none left."""
        try:
            self._wait()
            if not self._due:
                self._tell(self._untold)
                return False
            due = self._due.popleft()
            self._batches, self._places, self._spans = due.batches(self._cutter), due.places, due.spans
            self._where = due.where
            self._tell(due.bad)
        except BaseException:
            self.abandon()  # what is left does not fit together any more
            raise
        self._work_ahead()
        return True

    def _wait(self) -> None:
        """See that a batch is due, unless there is none left."""
        while not self._due:
            if self._error is not None:
                raise self._error
            if not self._open and self._windows_ended:
                self._make_last()
                return
            self.submit_tasks()
            self._collect()  # something may have come while rows were counted
            if self._open and not self._due and self._error is None:
                self._receive()
                self._collect()

    def _work_ahead(self) -> None:
        """Keep the workers busy while the loop is at work on the batches that it gets now."""
        if self._engine.works_ahead and not self._windows_ended and self._error is None:
            try:
                self.submit_tasks()
            except Exception as error:  # noqa: BLE001 (whatever counting raises)
                self._error = error

    def submit_tasks(self) -> None:
        """Open as many windows as may be open."""
        n_ahead = self._engine.workers if self._engine.works_ahead else 0
        while may_open_more(self._open, n_ahead) and not self._windows_ended:
            share = next(self._windows, None)
            if share is None:
                self._windows_ended = True
                break
            self._open_window(share)
            self._cut_windows()  # so that it counts for who is idlest

    def _open_window(self, share: Share) -> None:
        window = OpenWindow(share, self._next_index, self._tasks.idlest(), self._next_first)
        self._next_index, self._next_first = self._next_index + 1, 0
        self._open.append(window)
        n_rows = None if self._known_rows is None else self._known_rows(share)
        if n_rows is None:
            self._ask(window, ReadWindow(share))
        else:
            window.n_rows, window.is_told = max(n_rows, window.first), True

    def _ask(self, window: OpenWindow, keys: Any) -> None:
        part = len(window.asked)
        window.asked.append(keys)
        if window.text is None:
            self._tasks.ask(window, part, keys)
        else:
            window.answers[part] = Finished(-1, window.text.answer(keys))

    def count_rows(self, requests: Sequence[CountRows]) -> list[Counted]:
        """Have the workers count rows, while the windows that are open are read, too.

        Raises:
            Exception: what reading raised.
        """
        return [self._value(opened(outcome)) for outcome in self._call(requests)]

    def _call(self, requests: Sequence[Any]) -> list[Outcome]:
        """Submit some tasks and wait for what becomes of them."""
        numbers = self._tasks.call(requests)
        while (answers := self._tasks.answered(numbers)) is None:
            self._receive()
        return answers

    def _receive(self) -> None:
        received = self._tasks.receive()
        if received is None:
            return
        window, part, outcome = received
        if isinstance(window.asked[part], ReadWindow):
            outcome = opened(outcome)
            if not isinstance(outcome, Failed):
                self._note_read(window, outcome.batch if isinstance(outcome, Finished) else WindowRead(0))
        window.answers[part] = outcome
        self._note_time(window, part, outcome)

    def _note_read(self, window: OpenWindow, read: WindowRead) -> None:
        window.n_rows, window.text = max(read.n_rows, window.first), read.text
        self._windows_ended = self._windows_ended or read.is_last
        if self._note_rows is not None:
            self._note_rows(window.share, read.n_rows)
        self._cut_windows()

    def _note_time(self, window: OpenWindow, part: int, outcome: Outcome) -> None:
        if isinstance(outcome, Finished) and outcome.span is not None and self._timekeeper is not None:
            what = f"window {window.share.window.number}" + (f", part {part}" if part else "")
            request = window.asked[part]
            if isinstance(request, ReadWindow):
                n_rows = outcome.batch.n_rows
            else:
                n_rows = request.stop - request.start if window.is_told else 0
            self._timekeeper.made(Task(outcome.number, what, window.lane), outcome.span, n_rows)

    def _cut_windows(self) -> None:
        """Ask for the batches of all windows whose borders are known now."""
        for window in self._open:
            if window.n_rows is None:
                break
            if not window.is_cut:
                self._cut(window, window.n_rows)
        self._tasks.flush()

    def _cut(self, window: OpenWindow, n_rows: int) -> None:
        window.is_cut = True
        if n_rows > window.first:
            at_once = n_rows if window.text else self._rows_at_once(window)
            for request in self._borders.cut(window.share, window.first, n_rows, at_once):
                self._ask(window, request)

    def _rows_at_once(self, window: OpenWindow) -> int:
        """How many rows, or tokens, are answered at a time."""
        n_bytes = window.share.window.n_bytes
        if not window.is_told or not n_bytes:
            return _ROWS_AT_ONCE * self._row_length
        n_rows = (_BYTES_SENT_AT_ONCE if self._engine.works_ahead else _BYTES_AT_ONCE) * (window.n_rows or 1) // n_bytes
        return min(n_rows, _ROWS_AT_ONCE) if self._cutter is None else n_rows

    def _collect(self) -> None:
        """Take what has arrived, in order; an error comes after all batches before it."""
        try:
            self._collect_windows()
        except Exception as error:  # noqa: BLE001 (whatever the user's code raises)
            self._error = error

    def _collect_windows(self) -> None:
        while self._open:
            window = self._open[0]
            while window.n_taken in window.answers:
                self._take(window, window.asked[window.n_taken], window.answers.pop(window.n_taken))
            if window.n_taken < len(window.asked) or not window.is_cut:
                return
            self._open.popleft()
            self._windows_ended |= self._empty.are_all(window.n_rows or 0)

    def _take(self, window: OpenWindow, request: Any, outcome: Outcome) -> None:
        """Take the next answer of a window."""
        window.n_taken += 1
        match request:
            case CutBatches(share, start, stop, size):
                ends = range(start + size, stop + 1, size)
                spans = ((Span(share, end - size, end),) for end in ends)
                self._put(outcome, len(ends), zip(repeat(window.index), ends), spans)
            case SendColumns():
                self._take_columns(window.index, request, outcome)
            case SendRows(share, start, stop) if start < stop:
                self._rest.add(Span(share, start, stop), self._value(opened(outcome)))
                if len(self._rest) == self._size:
                    self._make_joined((window.index, stop))
            case ReadWindow():
                untold = self._untold
                self._value(outcome)
                self._untold = untold if window.first else self._untold  # what is bad was told in another life

    def _take_columns(self, index: int, request: SendColumns, outcome: Outcome) -> None:
        share, start, stop = request.share, request.start, request.stop
        ends = range(start + self._size - len(self._rest), stop + 1, self._size)
        spans: list[tuple[Span, ...]] = [(Span(share, end - self._size, end),) for end in ends]
        if spans:
            spans[0] = (*self._rest.take()[0], Span(share, start, ends[0]))
        left = ends[-1] if ends else start
        if left < stop:
            self._rest.add(Span(share, left, stop), None)
        self._put(outcome, len(ends), zip(repeat(index), ends), iter(spans), request.where)

    def _make_joined(self, place: tuple[int, int]) -> None:
        spans, rows = self._rest.take()
        if self._cutter is not None:
            outcome: Outcome = Finished(-1, [self._cutter.rest()])
        elif rows is not None:
            outcome = self._join(rows, self._progress.epoch, self._n_due)
            if isinstance(outcome, Finished):
                outcome = outcome._replace(batch=[outcome.batch])
        else:
            [outcome] = self._call([JoinBatch(spans, self._n_due)])
        self._put(outcome, 1, iter((place,)), iter((spans,)))

    def _put(
        self,
        outcome: Outcome,
        n: int,
        places: Iterator[tuple[int, int]],
        spans: Iterator[tuple[Span, ...]],
        where: Callable[[], str] | None = None,
    ) -> None:
        if isinstance(outcome, Failed):
            if where is not None:
                add_note(outcome.error, f"in {where()}")
            raise outcome.error
        self._due.append(Due(outcome, n, places, spans, (*self._untold, *outcome.bad), where))
        self._n_due, self._untold = self._n_due + n, ()

    def _make_last(self) -> None:
        """Make a batch of the rows that are left over at the end."""
        if self._drop_last:
            self._rest.take()
        if self._drops_rest:
            self._rest.shorten(len(self._rest) % self._row_length)
        if len(self._rest):
            if self._timekeeper is not None:
                self._timekeeper.ends_short((self._size - len(self._rest)) // self._row_length)
            self._make_joined((self._next_index, 0))

    def _value(self, outcome: Outcome) -> Any:
        """What a worker gives; None if it was left out, because it raised."""
        if isinstance(outcome, Failed):
            raise outcome.error
        self._untold = (*self._untold, *outcome.bad)
        return outcome.batch if isinstance(outcome, Finished) else None

    def _tell(self, bad: tuple[BadSample, ...]) -> None:
        if bad and self._tell_bad is not None:  # workers know the numbers of tasks only
            self._tell_bad(tuple(replace(one, batch=self._progress.batches) for one in bad))

    def _end(self) -> None:
        account, self._account, self._untold = self._account, None, ()  # the loop may ask again
        if account is not None:
            account.end()

    def abandon(self) -> None:
        """Give up the rest of the epoch, but leave the engine for the next one."""
        self._windows_ended = True
        self._account, self._untold, self._error, self._batches = None, (), None, iter(())
        self._open.clear()
        self._rest.take()
        self._due.clear()
        self._tasks.forget()

    def close(self) -> None:
        """Give up the rest of the epoch, and end the engine."""
        self.abandon()
        self._engine.close()
