"""What becomes of the rows of a window on their way to a share, piece by piece: steps, `take` and `skip`, dealing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from headrace.base.errors import add_note
from headrace.base.generators import GENERATORS
from headrace.base.indices import Indices
from headrace.base.randomness import rng, sample_key
from headrace.sources.chunks import JoinedChunk
from headrace.sources.source import BadRecord, Block, Chunk
from headrace.streams.recipe import Recipe
from headrace.streams.rows import every_nth, shuffle_rows
from headrace.streams.steps import BadRow, Map, MapAtOnce, OnBadRow
from headrace.streams.windows import Share, Window

Lap: TypeAlias = Callable[[str], None]
"""Ends a stage of what is timed."""

_RAW_CHARACTERS = 4096  # of a bad row
_PIECE_S = 0.004  # rows that take longer go through a step in several pieces
_FIRST_PIECE = 8  # rows
_LARGEST_PIECE = 4096
_LOCKSTEP_PIECE = 64  # where several steps may draw random numbers in turn: no clock may decide


class RowRange:
    """Keeps the rows [start, stop) of those that come, piece by piece.

    Attributes:
        is_over: whether nothing of what follows is kept.
        has_cut: whether anything was left out.
    """

    def __init__(self, start: int, stop: int | None) -> None:
        self._start = start
        self._stop = stop
        self._n_seen = 0
        self.is_over = stop is not None and stop <= start
        self.has_cut = False

    def keep(self, rows: Chunk) -> Chunk:
        n, seen = len(rows), self._n_seen
        self._n_seen += n
        start, stop = min(max(self._start - seen, 0), n), n
        if self._stop is not None:
            self.is_over = self.is_over or self._n_seen >= self._stop
            stop = max(start, min(self._stop - seen, n))
        if (start, stop) == (0, n):
            return rows
        self.has_cut = True
        return rows.slice(start, stop)


def cuts_after(window: Window, n_steps: int) -> list[RowRange]:
    """What `take` and `skip` leave of the rows of a window after so many steps."""
    return [RowRange(cut.start, cut.stop) for cut in window.cuts if cut.stage == n_steps]


class Stage:
    """A step, which rows go through piece by piece; before it, `take` and `skip` leave some of them out."""

    def __init__(self, step: Any, number: int, window: Window, bad: BadRows) -> None:
        self._step_name = Map.__name__ if isinstance(step, Map) else type(step).__name__
        self.name = _snake_case(self._step_name)
        self._step = step
        self._cuts = cuts_after(window, number)
        self._bad = bad
        self._size: int = getattr(step, "size", 1)
        self._held: list[Chunk] = []
        self._n_in = 0
        self._several = AtOnce(step) if isinstance(step, MapAtOnce) else None
        self.fewest_rows = 1 if self._several is None else step.fewest_rows

    @property
    def is_over(self) -> bool:
        return any(cut.is_over for cut in self._cuts)

    def apply(self, rows: Chunk, *, is_end: bool = False) -> Chunk:
        for cut in self._cuts:
            rows = cut.keep(rows)
        if self._size > 1:
            rows = JoinedChunk([*self._held, rows])
            whole = len(rows) if is_end else len(rows) - len(rows) % self._size
            self._held = [rows.slice(whole, len(rows))] if whole < len(rows) else []
            rows = rows.slice(0, whole)
        if not len(rows):
            return rows
        n_before, self._n_in = self._n_in, self._n_in + len(rows)
        bad, is_traced = self._bad, self._bad.is_traced and not any(cut.has_cut for cut in self._cuts)
        on_bad = bad.listen(self._step_name, n_before, is_traced=is_traced)
        several = self._several
        made: Chunk = self._step.apply(rows, on_bad) if several is None else several.apply(rows, on_bad)
        bad.is_traced = is_traced and self._step.keeps_count and len(made) == len(rows)
        return made


class AtOnce:
    """A step that makes several rows of a window at a time: its threads, and the numbers of its rows."""

    def __init__(self, step: MapAtOnce) -> None:
        self._step = step
        self._threads = step.open()
        self._key: Any = None  # of the random numbers of the window, or of a part that may be read by itself
        self._n_in = 0

    def apply(self, rows: Chunk, on_bad: OnBadRow) -> Chunk:
        key = sample_key()
        if key != self._key:
            self._key, self._n_in = key, 0
        first, self._n_in = self._n_in, self._n_in + len(rows)
        return self._step.apply(rows, on_bad, first, self._threads)


class StageRunner:
    """Lets rows go through stages, in pieces that take a few milliseconds.

    Args:
        is_seeded: whether it matters in which order stages draw random numbers.
    """

    def __init__(self, lap: Lap, *, is_seeded: bool) -> None:
        self._lap = lap
        self._is_seeded = is_seeded
        self._piece = _FIRST_PIECE

    def run(self, stages: Sequence[Stage], raw: Iterator[Chunk]) -> Iterator[Chunk]:
        if len(stages) == 1:
            [stage] = stages
            for rows in self._timed_pieces(raw, stage.fewest_rows):
                yield self._apply(stage, rows)
            yield self._apply(stage, JoinedChunk([]), is_end=True)
            return
        pieces = _lockstep_pieces(raw)
        before = glance() if self._is_seeded else None
        for rows in pieces:
            for number, stage in enumerate(stages, 1):
                rows = self._apply(stage, rows)
                if before is not None and number < len(stages) and glance() != before:
                    # Several stages draw: each has the numbers after those of the one before, for the whole window.
                    rest = self._finish(stages[:number], JoinedChunk(list(pieces)))
                    yield self._finish(stages[number:], JoinedChunk([rows, rest]))
                    return
            before = None
            yield rows
        yield self._finish(stages, JoinedChunk([]))

    def _apply(self, stage: Stage, rows: Chunk, *, is_end: bool = False) -> Chunk:
        made = stage.apply(rows, is_end=is_end)
        self._lap(stage.name)
        return made

    def _finish(self, stages: Sequence[Stage], rows: Chunk) -> Chunk:
        """What the stages make of the last rows of a window."""
        for stage in stages:
            rows = self._apply(stage, rows, is_end=True)
        return rows

    def _timed_pieces(self, raw: Iterator[Chunk], fewest: int) -> Iterator[Chunk]:
        """As many rows at a time as take a few milliseconds, but at least so many."""
        self._piece = max(self._piece, fewest)
        for chunk in raw:
            start = 0
            while start < len(chunk):
                size, begun = self._piece, perf_counter()
                yield chunk if not start and size >= len(chunk) else chunk.slice(start, min(start + size, len(chunk)))
                start += size
                fitting = int(size * _PIECE_S / (perf_counter() - begun + 1e-9))
                self._piece = max(fewest, min(2 * size, fitting, _LARGEST_PIECE))


def _lockstep_pieces(raw: Iterator[Chunk]) -> Iterator[Chunk]:
    size = _FIRST_PIECE
    for chunk in raw:
        start = 0
        while start < len(chunk):
            yield chunk.slice(start, min(start + size, len(chunk)))
            start, size = start + size, min(2 * size, _LOCKSTEP_PIECE)


class SharePart:
    """The rows of a window that belong to a share, piece by piece."""

    def __init__(self, share: Share, recipe: Recipe, *, packs: bool) -> None:
        self._first, self._step, self._unit = share.first, share.step, share.unit
        self._as_columns = recipe.as_columns and recipe.packing is None
        self._packing = recipe.packing if packs else None
        self._n_in = 0
        is_cut = share.skip or share.most is not None
        end = None if share.most is None else share.skip + share.most
        self._kept = RowRange(share.skip, end) if is_cut else None

    @property
    def is_over(self) -> bool:
        return self._kept is not None and self._kept.is_over

    @property
    def packs(self) -> bool:
        """Whether they become tokens."""
        return self._packing is not None

    def of(self, rows: Chunk) -> Chunk:
        if (self._first, self._step) != (0, 1) and len(rows):
            seen, self._n_in = self._n_in, self._n_in + len(rows)
            if self._unit > 1:
                units = np.arange(seen, self._n_in) // self._unit
                mine = np.flatnonzero((units >= self._first) & ((units - self._first) % self._step == 0))
                rows = shuffle_rows(rows, mine, as_columns=self._as_columns)
                return rows if self._kept is None else self._kept.keep(rows)
            first = self._first - seen if seen <= self._first else -(seen - self._first) % self._step
            rows = every_nth(rows, min(first, len(rows)), self._step, as_columns=self._as_columns)
        if self._packing is not None:
            rows = self._packing.join(rows.rows())
        return rows if self._kept is None else self._kept.keep(rows)


class BadRows:
    """What is bad in a window: noted if bad rows are left out, else raised, with a note of where it was.

    Attributes:
        found: the rows that were left out, and why.
        n_rows: of the blocks, as far as they were read.
        places: of the rows before they were shuffled; None if they were not.
        is_traced: whether the number of a row is still that of its record.
    """

    def __init__(self, window: Window, found: list[tuple[BadRow, Exception]], *, skips: bool) -> None:
        self.found = found
        self.n_rows: dict[Block, int] = {}
        self.places: Indices | None = None
        self.is_traced = True
        self._window = window
        self._skips = skips

    def note_record(self, record: BadRecord) -> None:
        self.found.append((BadRow(record.where, record.raw.decode(errors="replace")), ValueError(record.error)))

    def listen(self, step: str, n_before: int, *, is_traced: bool) -> OnBadRow:
        """What a step tells of bad rows, after so many."""

        def note(index: int, row: Any, error: Exception) -> None:
            where = f"{step} at {self._where(n_before + index) if is_traced else f'a row of {self._window.where()}'}"
            if not self._skips:
                add_note(error, where)
                raise error
            self.found.append((BadRow(where, repr(row)[:_RAW_CHARACTERS]), error))

        return note

    def _where(self, index: int) -> str:
        place = index if self.places is None else int(self.places[index])
        blocks, ends = list(self.n_rows), list(accumulate(self.n_rows.values()))
        number = bisect_right(ends, place)
        if number >= len(ends):
            return f"a row of {self._window.where()}"
        block = blocks[number]
        return f"row {place - (ends[number] - self.n_rows[block])} of {block.where()}"


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def glance() -> tuple[Any, ...]:
    """Something that differs after random numbers were drawn."""
    state = dict(rng().bit_generator.state)
    counter = state["state"]["counter"].tobytes()
    return counter, state["buffer_pos"], state["has_uint32"], *(generator.glance() for generator in GENERATORS)
