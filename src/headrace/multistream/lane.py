"""One position of the batch: a place in an endless row of sequences, read from there on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from headrace.base.errors import StateError
from headrace.multistream.assign import PieceOrder
from headrace.multistream.draws import KeyedDraws
from headrace.multistream.sequence_reader import Run, SequenceReader, SlicedReader
from headrace.multistream.sequence_set import Sequences

OnBad: TypeAlias = Callable[[Any, Exception], None]
"""Hears of what is left out, and why."""

_LOOKED_UP = 64  # ordinals at a time


class LanePlace(NamedTuple):
    """Where a position is.

    Attributes:
        ordinal: which piece, in the position's own order.
        offset: how many items of it have been read.
    """

    ordinal: int
    offset: int


_BEGINNING = LanePlace(0, 0)


class Start(NamedTuple):
    """A piece that begins in what was read.

    Attributes:
        at: which item of what was read is its first.
        is_first: whether a sequence begins there, and not only a piece of one.
    """

    at: int
    ordinal: int
    is_first: bool


@dataclass
class Reading:
    """What a position has read: `count` items, in runs that follow each other; fewer than asked for at its end only."""

    runs: list[Run] = field(default_factory=list)
    count: int = 0
    starts: list[Start] = field(default_factory=list)


class Lane:
    """Reads the pieces of one position.

    Guarantees: what is read is a function of the library, the order and the step alone.

    Args:
        position: its number in the batch, over all ranks.
        cycle: whether it goes on after its share.
        draws: None if nothing can be drawn.
        on_bad: hears of what raises; the rest of that sequence is left out. If None, it is raised.
        step: how many items come before `place`, and `mark` what helps to get there.
    """

    def __init__(
        self,
        library: Sequences,
        order: PieceOrder,
        *,
        position: int,
        epoch: int,
        cycle: bool,
        draws: KeyedDraws | None,
        step: int = 0,
        place: LanePlace = _BEGINNING,
        mark: Any = None,
        on_bad: OnBad | None = None,
    ) -> None:
        self._library = library
        self._order = order
        self._position = position
        self._epoch = epoch
        self._cycle = cycle
        self._draws = draws
        self._step = step
        self._ordinal, self._offset = place
        self._mark = mark
        self._tape: SequenceReader | None = None
        self._pieces: list[int] = []
        self._pieces_from = -1
        self._barren = 0  # empty pieces in a row
        self._on_bad = on_bad
        self._is_careful = False  # whether items are read one by one

    @property
    def place(self) -> LanePlace:
        return LanePlace(self._ordinal, self._offset if self._tape is None else self._tape.at)

    def mark(self) -> Any:
        """What helps another lane to get here; None if there is nothing."""
        return self._mark if self._tape is None else self._tape.mark()

    def read(self, n: int) -> Reading:
        """The next n items."""
        reading = Reading()
        while reading.count < n and self._reach_item():
            assert self._tape is not None
            start = self._tape.at
            run = self._take(n - reading.count)
            size = 0 if run is None else n_items(run)
            if run is None or not size:
                self._leave(is_broken=run is None)
                continue
            if start == 0:
                is_first = self._step == 0 or self._library.begins(self._piece())
                reading.starts.append(Start(reading.count, self._ordinal, is_first))
            reading.runs.append(run)
            reading.count += size
            self._step += size
        return reading

    def _take(self, n: int) -> Run | None:
        """The next items of the sequence; None if it raised, and that is left out."""
        assert self._tape is not None
        n = 1 if self._is_careful else n
        try:
            return self._tape.take(n, self._ticks(n))
        except Exception as error:
            if self._on_bad is None:
                raise
            if n > 1 and isinstance(self._tape, SlicedReader):
                self._is_careful = True  # the items before the bad one are good
                return self._take(n)
            self._on_bad(f"sequence {self._piece()}, from item {self._tape.at} on", error)
            return None

    def peek(self) -> tuple[Run, bool] | None:
        """The next item, and whether it is the first of a sequence; None at the end."""
        while self._reach_item():
            assert self._tape is not None
            try:
                run = self._tape.peek(self._ticks(1))
            except Exception:
                if self._on_bad is None:
                    raise
                return None  # it is told when it is read
            if n_items(run):
                return run, self._tape.at == 0 and self._library.begins(self._piece())
            self._leave()
        return None

    def skip(self, n: int) -> None:
        """Go on by n items, or to the end."""
        while n and self._reach_item():
            assert self._tape is not None
            start = self._tape.at
            try:
                self._tape.skip(n, self._ticks(n))
            except Exception:
                if self._on_bad is None:
                    raise
                self._step += self._tape.at - start
                n -= self._tape.at - start
                self._leave(is_broken=True)
                continue
            skipped = self._tape.at - start
            if not skipped:
                self._leave()
            n -= skipped
            self._step += skipped

    def _reach_item(self) -> bool:
        """Have a sequence open; False at the end."""
        if self._tape is not None:
            return True
        if not self._cycle and self._ordinal >= self._order.share:
            return False
        offset, mark, first = self._offset, self._mark, self._step - self._offset
        if self._draws is not None:
            self._draws.opening(self._epoch, self._position, first)
        try:
            self._tape = self._library.open(self._piece())
            self._tape.begin(mark)
        except StateError:
            raise
        except Exception as error:
            if self._on_bad is None:
                raise
            self._on_bad(f"sequence {self._piece()}", error)
            self._tape = SlicedReader(0, _nothing)
        left = offset - self._tape.at
        self._step = first + self._tape.at
        self._tape.skip(left, self._ticks(left))
        self._step = first + offset
        return True

    def _leave(self, *, is_broken: bool = False) -> None:
        """The sequence has ended; the next one is opened when it is needed."""
        assert self._tape is not None
        if not is_broken and self._on_bad is None:
            self._check_length(self._tape.at)
        if self._tape.at:
            self._barren = 0
        else:
            self._barren += 1
            if self._barren > self._order.period:
                raise ValueError(f"Position {self._position} cannot go on: all of its sequences are empty.")
        self._ordinal += 1
        self._offset, self._mark, self._tape, self._is_careful = 0, None, None, False

    def _check_length(self, found: int) -> None:
        lengths = self._library.lengths
        if lengths is not None and lengths[self._piece()] != found:
            raise ValueError(
                f"Sequence {self._piece()} must have {lengths[self._piece()]} items, as lengths says, but has {found}."
            )

    def _piece(self) -> int:
        """The number of the piece at hand; they are looked up by the dozen."""
        first = self._ordinal - self._ordinal % _LOOKED_UP
        if first != self._pieces_from:
            self._pieces = self._order.at(np.arange(first, first + _LOOKED_UP)).tolist()
            self._pieces_from = first
        return self._pieces[self._ordinal - first]

    def _ticks(self, n: int) -> Iterable[Any]:
        return range(n) if self._draws is None else self._draws.ticks(self._epoch, self._position, self._step, n)


def n_items(run: Run) -> int:
    """How many items a run has."""
    return len(next(iter(run.values()))) if isinstance(run, dict) else len(run)


def _nothing(start: int, stop: int, ticks: Iterable[Any]) -> Run:
    return []
