"""The windows of a stream that are being read: how far each of them is, and where batches begin and end in them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from headrace.base.messages import BadSample
from headrace.sources.chunks import JoinedChunk
from headrace.sources.source import Chunk
from headrace.streams.loop_batches import WindowText
from headrace.streams.messages import CutBatches, RowSpan, SendColumns, SendRows, equal_borders
from headrace.streams.windows import Share


@dataclass(eq=False)
class OpenWindow:
    """A window that is being read or cut.

    Attributes:
        index: its number among those of this rank.
        worker: who reads it.
        first: the row that it begins with; the ones before were given before.
        n_rows: how many rows are known to be there.
        n_cut: up to which row they have been asked for.
        is_read: whether there will be no more.
        is_told: whether the source has told the number of rows.
        text: rows that are here already, as text.
        n_reads: how often the worker has read on, and `n_reading` how often it was asked to, and has not answered yet.
        n_asked: how many tasks about its rows are in flight.
        part_ends: up to which row each of the parts goes that the loop has not got yet.
        dealt: what it is a part of, if it is one; `base` how many rows come before it there, which is known when
            the part `before` is read; -1 until then.
        batch: the number of the batch that its first row belongs to: what is bad in the window is told with that.
    """

    share: Share
    index: int
    worker: int
    first: int = 0
    n_rows: int = 0
    n_cut: int = 0
    is_read: bool = False
    is_told: bool = False
    text: WindowText = field(default_factory=WindowText)
    n_reads: int = 0
    n_reading: int = 0
    n_asked: int = 0
    part_ends: deque[int] = field(default_factory=deque)
    dealt: DealtWindow | None = None
    base: int = 0
    before: OpenWindow | None = None
    batch: int = -1
    bad: tuple[BadSample, ...] = ()
    error: BaseException | None = None

    @property
    def is_long(self) -> bool:
        """Whether it may have more rows than are to be held at a time."""
        return any(block.stop is None for block in self.share.window.blocks) and not self.share.window.is_shuffled

    @property
    def is_done(self) -> bool:
        """Whether all of its rows have come."""
        is_cut = self.is_read and self.n_cut >= self.n_rows
        return is_cut and not self.n_reading and not self.n_asked and self.error is None

    def find_base(self) -> None:
        """The part before is read, and cut: now it is known how many rows come before this one."""
        if self.before is not None:
            self.base, self.before = self.before.base + self.before.n_rows, None
            self.n_cut = max(0, self.first - self.base)


@dataclass(eq=False)
class DealtWindow:
    """A window whose file cannot be split: stretches of it are read by all workers.

    Attributes:
        number: of the stretch that is opened next, and `base` how many rows come before the first one that is.
        first: the row that it begins with.
        latest: the stretch that was opened last.
    """

    share: Share
    index: int
    first: int
    number: int
    base: int
    latest: OpenWindow | None = None
    has_ended: bool = False


class RestRows:
    """Rows that are left over of windows, and are joined with those of the next one."""

    def __init__(self) -> None:
        self._rest: list[tuple[RowSpan, Chunk | None]] = []

    def __len__(self) -> int:
        return sum(span.stop - span.start for span, _ in self._rest)

    def add(self, span: RowSpan, rows: Chunk | None) -> None:
        """Some more; None if they are not here."""
        self._rest.append((span, rows))

    def take(self) -> tuple[tuple[RowSpan, ...], Chunk | None]:
        """Which ones there are, and the rows, if all of them are here. Nothing is left then."""
        rest, self._rest = self._rest, []
        rows = [rows for _, rows in rest if rows is not None]
        return tuple(span for span, _ in rest), JoinedChunk(rows) if len(rows) == len(rest) else None

    def shorten(self, surplus: int) -> None:
        """Leave the last ones out."""
        while surplus:
            (share, start, stop, base), rows = self._rest.pop()
            kept = max(0, stop - start - surplus)
            if kept:
                self.add(RowSpan(share, start, start + kept, base), None if rows is None else rows.slice(0, kept))
            surplus -= stop - start - kept


class Borders:
    """Where batches end, in rows that come one after the other.

    Args:
        size: rows in a batch.
        n_batches: how many come before the first row.
    """

    def __init__(self, size: int, n_batches: int) -> None:
        self._size = size
        self.n_batches = n_batches  # that are whole
        self._rest = 0  # rows that are left over of all windows before

    def cut(
        self, share: Share, first: int, n_rows: int, at_once: int, *, is_whole: bool, is_last: bool
    ) -> tuple[list[CutBatches | SendRows], int]:
        """What to ask for of the rows from `first` on, of `n_rows`, and up to which row that goes.

        That is the rows that complete the batch before; all whole batches, of about `at_once` rows at a time; and what
        is left over, if no more follow from the same place (`is_whole`). Of the last of a window, `is_last` says so.
        """
        size = self._size
        head = min(first + -self._rest % size, n_rows)
        if not is_whole and head - first < -self._rest % size:
            return [], first  # the batch before cannot be completed yet
        tail = n_rows - (n_rows - head) % size
        requests: list[CutBatches | SendRows] = []
        if head > first:
            requests.append(SendRows(share, first, head))
        number = self.n_batches + (self._rest + head - first) // size
        step = max(1, at_once // size) * size
        for start in range(head, tail, step):
            requests.append(CutBatches(share, start, min(start + step, tail), size, number))
            number += step // size
        stop = n_rows if is_whole else tail
        if is_whole:
            requests.append(SendRows(share, tail, n_rows, is_last=is_last))
        whole, self._rest = divmod(self._rest + stop - first, size)
        self.n_batches += whole
        return requests, stop


def cut_columns(share: Share, first: int, n_rows: int, at_once: int) -> list[SendColumns]:
    """Equal parts of rows, whose batches are cut later."""
    borders = [first, n_rows] if share.window.is_given_whole else equal_borders(first, n_rows, at_once)
    return [SendColumns(share, start, stop, at_once, stop == n_rows) for start, stop in pairwise(borders)]
