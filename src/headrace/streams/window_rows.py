"""The rows of a window in a worker: read as far as they are wanted, held until they are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from headrace.base.errors import InternalError, RecordError
from headrace.base.randomness import Draws
from headrace.sources.chunks import JoinedChunk
from headrace.sources.source import Chunk
from headrace.streams.rows import as_one
from headrace.streams.steps import BadRow
from headrace.streams.windows import Window


@dataclass
class ReadFacts:
    """What is found out while a window is read.

    It is apart from the rows, which have what reads them: a cycle would keep files open.

    Attributes:
        draws: the random numbers, and `has_drawn` whether some are known to have been drawn.
        bad: the rows that were left out, and why.
        is_last: whether the data ended here, and `is_past_end` whether it had ended before.
    """

    draws: Draws | None = None
    has_drawn: bool = False
    bad: list[tuple[BadRow, Exception]] = field(default_factory=list)
    is_last: bool = False
    is_past_end: bool = False


class WindowRows:
    """The rows of a share, which are read as far as they are wanted.

    Guarantees: what they are does not depend on how far they are read at a time.

    Args:
        pieces: where they come from.
        n_rows: how many there will be, if that is known.
        keeps: whether rows that were taken are kept.

    Attributes:
        facts: what was found out on the way.
        first: the first row that can still be had.
        end: up to which they have been read.
        is_read: whether that is all.
        is_entered: whether whoever reads has entered the random numbers.
    """

    def __init__(
        self,
        window: Window,
        facts: ReadFacts,
        pieces: Iterator[Chunk],
        n_rows: int | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        self.facts = facts
        self.first = self.end = 0
        self.is_read = self.is_entered = False
        self._window = window
        self._pieces = pieces
        self._n_rows = n_rows
        self._keeps = keeps
        self._held: deque[Chunk] = deque()

    def __len__(self) -> int:
        """How many there are, or will be, as far as that is known."""
        return self.end if self._n_rows is None else self._n_rows

    def read_on(self, seconds: float | None = None, stop: int | None = None, wanted: int = 0) -> None:
        """Read for so long, or up to a row, or all; at least one piece, if there is any.

        Args:
            wanted: the rows before this one are not held.
        """
        if self.is_read:
            return
        draws = self.facts.draws
        if draws is None or self.is_entered:
            self._read_on(seconds, stop, wanted)
            return
        with draws:
            self._read_on(seconds, stop, wanted)
            draws.is_over = self.is_read

    def _read_on(self, seconds: float | None, stop: int | None, wanted: int) -> None:
        deadline = None if seconds is None else perf_counter() + seconds
        for piece in self._pieces:
            if len(piece):
                self._held.append(piece)
                self.end += len(piece)
                if self._n_rows is not None and self.end > self._n_rows:
                    raise RecordError(f"{self._window.where()} must have {self._n_rows} rows, but has more.")
                if self.end <= wanted:
                    self._forget(wanted)
            if stop is not None and self.end >= stop and (stop != self._n_rows or self.end < stop):
                return
            if deadline is not None and perf_counter() >= deadline:
                return
        self.is_read = True
        if self._n_rows is not None and self.end < self._n_rows:
            raise RecordError(f"{self._window.where()} must have {self._n_rows} rows, but has {self.end}.")

    @property
    def held(self) -> Sequence[Chunk]:
        """What was read, and is not forgotten yet."""
        return self._held

    def taken(self) -> None:
        """Forget all rows that are held."""
        self._held.clear()
        self.first = self.end

    def some(self, seconds: float) -> list[Chunk]:
        """What can be read in so long; it is not held any longer."""
        self.read_on(seconds)
        some = list(self._held)
        self.taken()
        return some

    def slice(self, start: int, stop: int) -> Chunk:
        """Rows, which are read if they must be; those before `start` are forgotten, unless all are kept."""
        self._forget(start)
        if self.end < stop or stop == self._n_rows:
            self.read_on(stop=stop, wanted=start)
        if start < self.first:
            raise InternalError(f"Rows before {self.first} are forgotten, but {start} was asked for.")
        held, start, stop = self._held, start - self.first, stop - self.first
        return held[0].slice(start, stop) if held and stop <= len(held[0]) else JoinedChunk(held).slice(start, stop)

    def parts(self, start: int, stop: int) -> Iterator[Chunk]:
        """Rows as they were read; of those that were taken, only the last are held."""
        while start < stop:
            self._forget(start)
            if self.end <= start:
                self.read_on(stop=start + 1, wanted=start)
                if self.end <= start:
                    return
            end = min(self.end, stop)
            yield self.slice(start, end)
            start = end
        if stop == self._n_rows:
            self.read_on()

    def _forget(self, start: int) -> None:
        while not self._keeps and self._held and self.first + len(self._held[0]) <= start:
            self.first += len(self._held.popleft())

    def whole(self) -> Chunk:
        """All rows."""
        self.read_on()
        return as_one(list(self._held))
