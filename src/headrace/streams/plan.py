"""The plan of a stream's epoch: windows are read by the workers, and come back as the batches of one reader.

A worker reads a window bit by bit, transforms its rows, and says how many there are so far, unless the source knows.
From the sum of all rows before, it is known then where the borders of the batches fall. The worker makes all batches
that lie within its window; the few rows before the first border and after the last one are sent as they are, and
joined here with those of the neighbours. So a batch can be given out as soon as its rows are there. Text that nothing
is done to, and columns, are sent as they were read, and become batches where these are given out.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np

from headrace.base.errors import add_note
from headrace.base.messages import BadSample, Failed, Finished, Outcome, Task, decoded
from headrace.base.plan import LOST, Batches, Due, Plan
from headrace.streams.audited import RowKeys
from headrace.streams.fetch import BatchMaker, StreamJob
from headrace.streams.loop_batches import ColumnCutter, ColumnParts
from headrace.streams.messages import (
    BatchesCut,
    Counted,
    CountRows,
    CutBatches,
    JoinBatch,
    ReadOn,
    RowSpan,
    SendColumns,
    SendRows,
    WindowRead,
)
from headrace.streams.open_windows import Borders, DealtWindow, OpenWindow, RestRows, cut_columns
from headrace.streams.rank_windows import Loading, UnknownCountError
from headrace.streams.windows import EmptyWindows, Share

_ROWS_AT_ONCE = 4096  # that a worker makes batches of before it sends them
_BYTES_AT_ONCE = 2 << 20  # that the loop itself reads before it gives them out: while they are in the cache
_BYTES_SENT_AT_ONCE = 8 << 20  # by a worker
_AHEAD = 2  # windows for each worker
_SMALL_AHEAD = 4  # of these
_SMALL_BYTES = 8 << 20
_DEALT_BYTES = 1 << 20  # of a compressed file: of smaller ones, each worker reads one
_READS_AHEAD = 2  # of a window that takes long
_PARTS_AHEAD = 8  # of a window of any length, that the loop has not got yet; if they have
_ROWS_AHEAD = 8192  # together: where steps are slow, parts are small
_OTHER_ROWS = (
    "Stream.from_iterable needs an iterable that gives the same rows each time, since every worker goes through all of "
    "it and leaves out the rows of the others. But the first rows that two workers got are different, so rows would be "
    "lost. For a live feed, write Stream.live(connect); else pass shard='dispatch', so that only the loader's process "
    "reads it."
)


class StreamPlan(Plan):
    """One epoch of a stream.

    Guarantees: the batches, and what is told of bad rows, are those of one reader of all windows, whatever the workers'
    number and speed; a bounded number of windows is open; the position after each batch is the window and the row that
    come next.

    Args:
        shares: what to read, one after the other; asked for a few at a time.
        size: rows in a batch.
        known_rows: tells how many rows a window will have, if that is known: then batches are asked for without waiting
            until it is read.
        note_rows: hears how many rows a window has.
        locate: the position of a place, and of the stretch that it lies in.
    """

    survives_errors = False
    bounds_itself = True

    def __init__(
        self,
        shares: Any,
        loading: Loading,
        epoch: int,
        start: Mapping[str, Any],
        *,
        size: int,
        batches: int,
        known_rows: Callable[[Share], int | None] | None,
        note_rows: Callable[[Share, int], None],
        locate: Callable[[Any, Any], dict[str, Any]],
    ) -> None:
        super().__init__(epoch, start, batches=batches)
        self.latest = batches - 1
        packing = loading.recipe.packing
        self._row_length = 1 if packing is None else packing.length
        self._drops_rest = packing is not None and packing.drops_rest
        self._drop_last = loading.drop_last
        self._n_samples = size
        self._size = size * self._row_length
        self._loading = loading
        self._row_keys = RowKeys(loading)
        self.shares = shares
        shares.ask = _weakly(self)
        self._windows = iter(shares)
        self._next_index, self._next_first = self.start.get("place", (0, 0))
        self._known_rows, self._note_rows = known_rows, note_rows
        self._empty = EmptyWindows(shares.most_empty)
        self._locate = locate
        self._maker: BatchMaker | None = None
        self._cutter: ColumnCutter | None = None
        self._open: deque[OpenWindow] = deque()
        self._asked: dict[int, tuple[OpenWindow, tuple[BadSample, ...]]] = {}  # by the number of the task
        self._asks: deque[Task | Failed | Due] = deque()  # that were not submitted yet
        self._n_tasks = 0
        self._n_questions = 0
        self._borders = Borders(self._size, batches)
        self._n_due = batches  # batches that have arrived
        self._rest = RestRows()  # and rows for the next one
        self._untold: tuple[BadSample, ...] = ()
        self._carried: tuple[BadSample, ...] = ()  # the same, before what is asked for next
        self._windows_ended = False
        self._dealt: DealtWindow | None = None
        self._mark: Any = None
        self._n_last = 0  # rows in the last batch
        self._origin: int | None = None  # of an iterable, as the first worker has found it

    def prepare(self, reader: StreamJob, workplace: Any) -> None:
        """Know how batches are made, for those that are made here."""
        self._maker = reader.open(workplace).maker
        if reader.cuts_later:
            self._cutter = ColumnCutter(self._n_samples, self._maker.collate_columns)

    # What to ask for

    def next_task(self, worker: int) -> Task | Failed | Due | None:
        if self._asks:
            return self._asks.popleft()
        for window in self._open:
            if self._may_read_on(window):
                return self._read_on(window)
        while not self._windows_ended and self._may_open() and self.shares.is_ready:
            opened_window = self._open_window(worker)
            if opened_window is None:
                break
            if not opened_window.is_told:
                return self._read_on(opened_window)
            self._cut_windows()
            if self._asks:
                return self._asks.popleft()
        return self._asks.popleft() if self._asks else None

    def wait(self) -> bool:
        if self._windows_ended or self._open:
            return False
        self.shares.wait()
        return True

    def _may_read_on(self, window: OpenWindow) -> bool:
        if window.is_read or window.is_told or window.error is not None:
            return False
        if window.is_long and self._is_far_ahead(window):
            return False
        if not self.workers:
            return window is self._open[0] and not window.n_reading
        return window.n_reading < min(_READS_AHEAD, window.n_reads)  # the first part may be all

    def _is_far_ahead(self, window: OpenWindow) -> bool:
        """Whether many parts were read that the loop has not got yet, though it could, or that cannot be cut yet."""
        index, row = (-1, 0) if self._mark is None else self._mark[:2]
        given = row if index == window.index else window.first
        while window.part_ends and window.part_ends[0] <= given:
            window.part_ends.popleft()
        # Of the first window, more rows than are cut may be needed for a whole batch.
        end = window.n_cut if window is self._open[0] else window.n_rows
        n_parts = sum(part_end <= end for part_end in window.part_ends) + window.n_reading
        return n_parts >= _PARTS_AHEAD and end - given >= _ROWS_AHEAD

    def _may_open(self) -> bool:
        """Whether one more window may be open: enough that no worker waits for the loop, but not too much memory."""
        windows = self._open
        if not self.workers:
            return not windows
        is_small = bool(windows) and 0 < windows[-1].share.window.n_bytes <= _SMALL_BYTES
        return len(windows) < (_SMALL_AHEAD if is_small else _AHEAD) * self.workers

    def _open_window(self, worker: int) -> OpenWindow | None:
        dealt = self._dealt
        if dealt is not None and not dealt.has_ended:
            return self._open_stretch(dealt, worker)
        share = next(self._windows, None)
        if share is None:
            self._windows_ended = True
            self._close_windows()
            return None
        index, first = self._next_index, self._next_first
        self._next_index, self._next_first = index + 1, 0
        if self._deals(share):
            number, base = (0, 0) if not first else self.start.get("stretch", (0, 0))
            self._dealt = DealtWindow(share, index, first, number, base)
            return self._open_stretch(self._dealt, worker)
        window = OpenWindow(share, index, worker, first, n_cut=first)
        self._open.append(window)
        n_rows = None if self._known_rows is None else self._known_rows(share)
        if n_rows is not None:
            window.n_rows, window.is_told, window.is_read = max(n_rows, window.first), True, True
        return window

    def _deals(self, share: Share) -> bool:
        """Whether all workers are to read parts of a window at a time: its file cannot be split, and is large."""
        window = share.window
        is_whole = share == Share(window, is_again=share.is_again)
        return is_whole and window.n_bytes >= _DEALT_BYTES and self._loading.recipe.stretch(window, 0) is not None

    def _open_stretch(self, dealt: DealtWindow, worker: int) -> OpenWindow:
        part = self._loading.recipe.stretch(dealt.share.window, dealt.number)
        assert part is not None
        window = OpenWindow(dealt.share._replace(window=part), dealt.index, worker, dealt.first, dealt=dealt)
        if dealt.latest is None:
            window.base, window.n_cut = dealt.base, max(0, dealt.first - dealt.base)
        else:
            window.base, window.before = -1, dealt.latest
        dealt.latest, dealt.number = window, dealt.number + 1
        self._open.append(window)
        return window

    def _read_on(self, window: OpenWindow) -> Task:
        window.n_reading += 1
        self._n_questions += 1
        number = -1 - self._n_questions
        self._asked[number] = window, ()
        return Task(number, ReadOn(window.share, window.n_reads, window.n_cut), window.worker)

    def _count_rows(self, requests: Sequence[CountRows]) -> list[Counted]:
        """Have the workers count rows, while the windows that are open are read, too.

        Raises:
            Exception: what reading raised.
        """
        return [self._value(decoded(outcome)) for outcome in self.call(requests)]

    # What an answer means

    def accept(self, task: Task, outcome: Outcome) -> Iterable[Due]:
        if task.number not in self._asked:
            return ((task, outcome),)
        window, bad = self._asked.pop(task.number)
        if task.number < 0:
            self._note_read(window, decoded(outcome))
            return ()
        window.n_asked -= 1
        self._untold += bad
        if isinstance(outcome, Failed):
            return ((task, outcome),)
        due = self._take(window, task.keys, outcome)
        self._close_windows()
        return due

    def _note_read(self, window: OpenWindow, outcome: Outcome) -> None:
        window.n_reading -= 1
        window.n_reads += 1
        if isinstance(outcome, Failed):
            window.error, window.is_read = outcome.error, True
        else:
            read = outcome.batch if isinstance(outcome, Finished) else WindowRead(window.n_rows, is_read=True)
            if not window.first or window.first <= window.base or window.base < 0:  # else it was told before
                window.bad += outcome.bad
            self._note_rows_of(window, read)
            if read.origin not in (None, self._origin) and self._origin is not None:
                window.error = ValueError(_OTHER_ROWS)
            self._origin = read.origin if self._origin is None else self._origin
        self._cut_windows()

    def _note_rows_of(self, window: OpenWindow, read: WindowRead) -> None:
        if read.n_rows > window.n_rows:
            if read.text is not None:
                window.text.add(read.text, read.start, window.n_rows)
            elif window.text:
                self._cut(window, is_whole=True)  # what comes is in the worker
            window.n_rows = read.n_rows
            window.part_ends.append(read.n_rows)
        if read.is_read and not window.is_read:
            window.is_read = True
            self._windows_ended = self._windows_ended or read.is_last
            if window.dealt is not None:
                window.dealt.has_ended |= read.ends
            else:
                self._note_rows(window.share, read.n_rows)

    def _cut_windows(self) -> None:
        """Ask for the batches of all rows whose place in the order is known now."""
        for window in self._open:
            window.find_base()
            if window.batch < 0:
                window.batch = self._borders.n_batches
            self._carried += tuple(replace(one, batch=window.batch) for one in window.bad)
            window.bad = ()
            self._cut(window, is_whole=window.is_read)
            if window.error is not None:
                self._asks.append(Failed(self._n_tasks, window.error))
                self._windows_ended = True
                break
            if not window.is_read:
                break
        self._close_windows()

    def _close_windows(self) -> None:
        while self._open and self._open[0].is_done:
            window = self._open.popleft()
            if window.n_rows or not window.share.window.stretch:
                self._windows_ended |= self._empty.are_all(window.n_rows)

    def _cut(self, window: OpenWindow, *, is_whole: bool) -> None:
        """Ask for all whole batches of the rows that are there; and if `is_whole`, for the rest of them."""
        if window.n_rows <= window.n_cut:
            window.text.forget(window.n_rows)
            return
        if self._cutter is not None:
            requests: Sequence[Any] = cut_columns(window.share, window.n_cut, window.n_rows, self._at_once(window))
            window.n_cut = window.n_rows
        else:
            at_once = window.n_rows if window.text else self._at_once(window)
            requests, window.n_cut = self._borders.cut(
                window.share, window.n_cut, window.n_rows, at_once, is_whole=is_whole, is_last=window.is_read
            )
        for request in requests:
            number, self._n_tasks = self._n_tasks, self._n_tasks + 1
            self._asked[number], self._carried = (window, self._carried), ()
            window.n_asked += 1
            task = Task(number, request, window.worker)
            # What is here already is answered as a worker would, in the order of what is asked of workers.
            self._asks.append((task, Finished(number, window.text.answer(request))) if window.text else task)
        window.text.forget(window.n_cut)

    def _at_once(self, window: OpenWindow) -> int:
        """How many rows, or tokens, are answered at a time."""
        n_bytes = window.share.window.n_bytes
        if not window.is_told or not n_bytes:
            return _ROWS_AT_ONCE * self._row_length
        n_rows = (_BYTES_SENT_AT_ONCE if self.workers else _BYTES_AT_ONCE) * (window.n_rows or 1) // n_bytes
        return min(n_rows, _ROWS_AT_ONCE) if self._cutter is None else n_rows

    def _take(self, window: OpenWindow, request: Any, outcome: Outcome) -> list[Due]:
        """What the next answer makes due; it is its turn."""
        match request:
            case CutBatches(_, start, stop, size):
                ends = range(start + size, stop + 1, size)
                rows = range(ends.start + window.base, ends.stop + window.base, size)
                marks = zip(repeat(window.index), rows, repeat(request), repeat(window.base))
                return [self._due(outcome, len(ends), marks)]
            case SendColumns():
                return [self._due_columns(window.index, request, outcome)]
            case SendRows(share, start, stop) if start < stop:
                self._rest.add(RowSpan(share, start, stop, window.base), self._value(decoded(outcome)))
                if len(self._rest) == self._size:
                    return [self._joined((window.index, stop + window.base))]
        return []

    def _due_columns(self, index: int, request: SendColumns, outcome: Outcome) -> Batches:
        share, start, stop = request.share, request.start, request.stop
        ends = range(start + self._size - len(self._rest), stop + 1, self._size)
        spans: list[Any] = [(RowSpan(share, end - self._size, end),) for end in ends]
        if spans:
            spans[0] = (*self._rest.take()[0], RowSpan(share, start, ends[0]))
        left = ends[-1] if ends else start
        if left < stop:
            self._rest.add(RowSpan(share, left, stop), None)
        return self._due(outcome, len(ends), zip(repeat(index), ends, spans, repeat(0)), request.where)

    def _joined(self, place: tuple[int, int]) -> Batches:
        """A batch of the rows that are left over."""
        spans, rows = self._rest.take()
        if self._cutter is not None:
            outcome: Outcome = Finished(-1, [self._cutter.rest()])
        elif rows is not None:
            assert self._maker is not None
            outcome = self._maker.join(rows, self.epoch, self._n_due)
            if isinstance(outcome, Finished):
                outcome = outcome._replace(batch=[outcome.batch])
        else:
            [outcome] = self.call([JoinBatch(spans, self._n_due)])
        return self._due(outcome, 1, iter(((*place, spans, spans[-1].base),)))

    def _due(self, outcome: Outcome, n: int, marks: Iterator[Any], where: Callable[[], str] | None = None) -> Batches:
        number, self._n_due = self._n_due, self._n_due + n
        if isinstance(outcome, Failed):
            if where is not None:
                add_note(outcome.error, f"in {where()}")
            raise outcome.error
        bad, self._untold = (*self._untold, *(replace(one, batch=number) for one in outcome.bad)), ()
        return Batches(partial(self._batches, outcome, n), marks, bad, where)

    def _batches(self, outcome: Outcome, n: int) -> Iterable[Any]:
        """The batches of an answer; some may be `LOST`.

        Raises:
            Exception: they cannot be rebuilt here.
        """
        outcome = decoded(outcome)
        if isinstance(outcome, Failed):
            raise outcome.error
        if not isinstance(outcome, Finished):
            return repeat(LOST, n)
        value = outcome.batch
        if isinstance(value, BatchesCut):
            made = iter(value.batches)
            return (LOST if place in value.lost else next(made) for place in range(n))
        if self._cutter is not None and isinstance(value, ColumnParts):
            return self._cutter.batches(value)
        batches: Iterable[Any] = value
        return batches

    def finish(self) -> Iterable[Due]:
        """A batch of the rows that are left over at the end."""
        self._untold += self._carried
        self._carried = ()
        if self._drop_last:
            self._rest.take()
        if self._drops_rest:
            self._rest.shorten(len(self._rest) % self._row_length)
        if len(self._rest):
            self._n_last = -(-len(self._rest) // self._row_length)
            return [self._joined((self._next_index, 0))]
        if self._untold:
            bad, self._untold = self._untold, ()
            return [Batches(tuple, iter(()), bad)]
        return ()

    def _value(self, outcome: Outcome) -> Any:
        """What a worker gives; None if it was left out, because it raised."""
        if isinstance(outcome, Failed):
            raise outcome.error
        self._untold = (*self._untold, *(replace(one, batch=self._n_due) for one in outcome.bad))
        return outcome.batch if isinstance(outcome, Finished) else None

    # What the loop gets

    def give(self, marks: Iterator[Any], n: int) -> int:
        self.batches += n
        self.latest += n
        for self._mark in islice(marks, n):
            pass
        if self.shares.live is not None:
            self.shares.live.given(*self._mark[:2])
        return n * self._n_samples if self._mark[1] else (n - 1) * self._n_samples + self._n_last

    def keys(self, mark: Any) -> Any:
        if type(mark) is Task:
            return None
        return np.concatenate([self._row_keys.of(span) for span in self._spans_of(mark)])

    def _spans_of(self, mark: Any) -> Sequence[RowSpan]:
        """The rows of the batch before a mark."""
        _, end, made_of, base = mark
        if isinstance(made_of, CutBatches):
            return (RowSpan(made_of.share, end - base - self._size, end - base, base),)
        spans: Sequence[RowSpan] = made_of
        return spans

    def position(self) -> dict[str, Any]:
        if self._mark is None:
            return self._locate(self.start.get("place"), self.start.get("stretch"))
        number, base = self._spans_of(self._mark)[-1].share.window.stretch, self._mark[3]
        return self._locate(self._mark[:2], [number, base] if number else None)

    def describe(self, task: Task) -> tuple[Any, ...]:
        request: Any = task.keys
        if not hasattr(request, "share"):
            return "a batch of several windows", 0
        what = f"window {request.share.window.number}"
        match request:
            case ReadOn(part=part):
                return (f"{what}, part {part}" if part else what), 0
            case CutBatches(start=start, stop=stop) | SendColumns(start=start, stop=stop) | SendRows(_, start, stop):
                return f"{what}, rows {start} to {stop - 1}", (stop - start) / self._row_length
            case _:
                return what, 0

    def abandon(self) -> None:
        self._windows_ended = True
        self._asks.clear()
        self._asked.clear()
        self._open.clear()
        self._rest.take()
        self._untold = self._carried = ()


def _weakly(plan: StreamPlan) -> Callable[[Sequence[CountRows]], list[Counted]]:
    """Counts rows as long as the plan is there, which has what asks here: a cycle would keep workers alive."""
    known = weakref.ref(plan)

    def count(requests: Sequence[CountRows]) -> list[Counted]:
        plan = known()
        if plan is None:
            raise UnknownCountError
        return plan._count_rows(requests)

    return count
