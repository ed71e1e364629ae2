"""Reads windows: their blocks, shuffled, and what the steps make of the rows."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from headrace.base.errors import InternalError, RecordError, add_note
from headrace.base.generators import GENERATORS, derive_key
from headrace.base.indices import Indices
from headrace.base.lazy_column import Allocate
from headrace.base.messages import Place
from headrace.base.randomness import Draws, SampleRandomness, rng
from headrace.base.world import keep_freed_memory
from headrace.order.permutation import Permutation
from headrace.sources.chunks import ColumnChunk, JoinedChunk
from headrace.sources.files import is_local
from headrace.sources.source import BadRecord, Block, Chunk, Stretch
from headrace.streams.messages import Counted, CountRows
from headrace.streams.mixing import MixSource
from headrace.streams.recipe import Ask, Recipe
from headrace.streams.rows import as_one, every_nth, placed_columns, shuffle_rows
from headrace.streams.steps import BadRow, OnBadRow
from headrace.streams.tokens import join_tokens
from headrace.streams.user_sources import IterableSource
from headrace.streams.windows import Share, Window

TakeIn: TypeAlias = Callable[[Chunk], Chunk]
Lap: TypeAlias = Callable[[str], None]
"""Ends a stage of what is timed."""

_WINDOWS_KEPT = 2  # of each stream of a mix
_RAW_CHARACTERS = 4096  # of a bad row
_PIECE_S = 0.004  # rows that take longer go through a step in several pieces
_FIRST_PIECE = 8  # rows
_LARGEST_PIECE = 4096
_LOCKSTEP_PIECE = 64  # where several steps may draw random numbers in turn: no clock may decide
_MIXED_AT_ONCE = 256


def _no_lap(stage: str) -> None:
    """Nothing is timed."""


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


class WindowReader:
    """Reads the windows of a recipe.

    Guarantees: what it reads is a function of the window; if there is a `randomness`, so are the random numbers that
    the user's functions draw.

    Args:
        skips: whether bad rows are left out; else they raise.
        allocate: gives memory that another process sees, if columns are only sent there.
        path: which part of a mix the recipe is; see `CountRows`.
        lap: hears when stages end.
    """

    def __init__(
        self,
        recipe: Recipe,
        randomness: SampleRandomness | None = None,
        *,
        skips: bool = False,
        allocate: Allocate | None = None,
        path: tuple[int, ...] = (),
        lap: Lap = _no_lap,
    ) -> None:
        self._recipe = recipe
        self._randomness = randomness
        self._skips = skips
        self._allocate = allocate
        self._path = path
        self._lap = lap
        self._piece = _FIRST_PIECE
        self._parts: dict[int, WindowReader] = {}
        self._kept: dict[int, OrderedDict[int, WindowRows]] = {}  # of the parts, which do not know of it
        keep_freed_memory()

    def rows(self, share: Share, n_steps: int | None = None, *, keeps: bool = False) -> WindowRows:
        """The rows of a share, after all steps, or after so many."""
        window = share.window
        told = [block.rows for block in window.blocks]
        is_whole = share == Share(window, is_again=share.is_again) and not window.cuts and n_steps is None
        is_told = is_whole and self._recipe.tells_rows and not self._skips and None not in told
        facts = ReadFacts(self._draws(window))
        n_rows = sum(n or 0 for n in told) if is_told else None
        return WindowRows(window, facts, self._pieces(share, n_steps, facts), n_rows, keeps=keeps)

    def ends(self, share: Share) -> bool:
        """Whether the file of a stretch, which was read, ends with it; true of all else."""
        block = share.window.blocks[0] if share.window.blocks else None
        return not isinstance(block, Stretch) or bool(self._recipe.source.ends_in(block))

    def count(self, request: CountRows) -> Counted:
        """How many rows a share has. Block by block, if that tells of other windows, too."""
        share, path, n_steps = request
        if path:
            return self._part(path[0]).count(request._replace(path=path[1:]))
        by_block = self._count_blocks(share, n_steps)
        if by_block is not None:
            return Counted(sum(by_block), by_block, is_settled=True)
        rows = self.rows(share, n_steps)
        is_settled = self._drain(rows)
        return Counted(rows.end, None, is_settled, rows.facts.is_past_end)

    def _drain(self, rows: WindowRows) -> bool:
        """Read all rows, and forget them; whether they are known to have drawn no random numbers."""
        draws, rows.is_entered = rows.facts.draws, True
        if draws is None:
            while not rows.is_read:
                rows.read_on(seconds=1.0)
                rows.taken()
            return self._randomness is not None
        with draws:
            draws.seen = _look()
            while not rows.is_read:
                rows.read_on(seconds=1.0)
                rows.taken()
            draws.is_over = True
            return not rows.facts.has_drawn and _look() == draws.seen

    def _count_blocks(self, share: Share, n_steps: int | None) -> tuple[int, ...] | None:
        """The numbers of rows of the blocks; None if they depend on each other, or on random numbers."""
        window, recipe = share.window, self._recipe
        is_by_row = all(step.is_by_row for step in recipe.steps[:n_steps])
        if (
            window.cuts
            or share != Share(window)
            or not is_by_row
            or isinstance(recipe.source, (MixSource, IterableSource))
        ):
            return None
        counts = []
        for block in window.blocks:
            facts, alone = ReadFacts(self._draws(window)), Share(window._replace(blocks=(block,), is_shuffled=False))
            rows = WindowRows(window, facts, self._pieces(alone, n_steps, facts))
            if not self._drain(rows):
                return None
            counts.append(rows.end)
        return tuple(counts)

    # The way of the rows

    def _pieces(self, share: Share, n_steps: int | None, facts: ReadFacts) -> Iterator[Chunk]:
        """The rows of a share, some at a time."""
        window, bad = share.window, _BadRows(share.window, facts.bad, skips=self._skips)
        steps = self._recipe.steps[:n_steps]
        stages = [_Stage(step, number, window, bad) for number, step in enumerate(steps)]
        last = _Cuts(window, len(steps))
        part = _SharePart(share, self._recipe, packs=n_steps is None)
        lap = self._lap
        for section in self._sections(window, facts):
            raw = self._raw(section, bad, facts)
            for made in self._through(stages, raw) if stages else raw:
                made = last.cut(made)
                made = part.of(made)
                if part.packs:
                    lap("pack")
                yield made
                if last.is_over or part.is_over or any(stage.cuts.is_over for stage in stages):
                    return  # the rest would be cut off

    def _sections(self, window: Window, facts: ReadFacts) -> Iterator[Window]:
        """The parts of a window that have random numbers of their own: mostly it has one."""
        section = self._recipe.stretch(window, 0)
        if section is None:
            yield window
            return
        for number in count(1):
            assert section is not None
            yield section
            if self._recipe.source.ends_in(section.blocks[0]):
                return
            section = self._recipe.stretch(window, number)
            if section is not None and facts.draws is not None:
                facts.has_drawn = facts.has_drawn or _look() != facts.draws.seen
                facts.draws.restart(self._place_of(section))
                facts.draws.seen = _look()

    def _through(self, stages: Sequence[_Stage], raw: Iterator[Chunk]) -> Iterator[Chunk]:
        """What the steps make of rows, a piece after the other."""
        lap, is_alone = self._lap, len(stages) == 1
        before = None if is_alone or self._randomness is None else _look()
        pieces = self._cut_pieces(raw, is_alone=is_alone)
        for rows in pieces:
            for number, stage in enumerate(stages):
                rows = stage.apply(rows)
                lap(stage.name)
                if before is not None and number < len(stages) - 1 and _look() != before:
                    # Several steps draw: each has the numbers after those of the one before, for the whole window.
                    yield _step_by_step(stages, number, rows, list(pieces), lap)
                    return
            before = None
            yield rows
        rows = JoinedChunk([])
        for stage in stages:
            rows = stage.apply(rows, is_end=True)
            lap(stage.name)
        yield rows

    def _cut_pieces(self, raw: Iterator[Chunk], *, is_alone: bool) -> Iterator[Chunk]:
        """Rows in pieces that take a few milliseconds to go through the steps."""
        if not is_alone:
            size = _FIRST_PIECE
            for chunk in raw:
                start = 0
                while start < len(chunk):
                    yield chunk.slice(start, min(start + size, len(chunk)))
                    start, size = start + size, min(2 * size, _LOCKSTEP_PIECE)
            return
        for chunk in raw:
            start = 0
            while start < len(chunk):
                size, begun = self._piece, perf_counter()
                yield chunk if not start and size >= len(chunk) else chunk.slice(start, min(start + size, len(chunk)))
                start += size
                fitting = int(size * _PIECE_S / (perf_counter() - begun + 1e-9))
                self._piece = max(1, min(2 * size, fitting, _LARGEST_PIECE))

    def _raw(self, window: Window, bad: _BadRows, facts: ReadFacts) -> Iterator[Chunk]:
        """The rows as the source has them, or shuffled."""
        if isinstance(self._recipe.source, MixSource):
            chunks = self._mix(window, bad, is_whole=window.is_shuffled)
        else:
            chunks = self._blocks(window, bad, facts)
        if not window.is_shuffled:
            for chunk in chunks:
                self._lap("read")
                yield chunk
            return
        whole = as_one(list(chunks))
        self._lap("read")
        if len(whole):
            shuffled = self._shuffled(whole, window, bad)
            self._lap("shuffle")
            yield shuffled

    def _blocks(self, window: Window, bad: _BadRows, facts: ReadFacts) -> Iterator[Chunk]:
        source, take_in = self._recipe.source, self._take_in(window)
        is_told = self._recipe.tells_rows and not self._skips
        n_raw = 0
        for block in window.blocks:
            n_rows = 0
            for chunk in self._block(block, bad, take_in):
                n_rows += len(chunk)
                bad.n_rows[block] = n_rows
                yield chunk
            if is_told and block.rows not in (None, n_rows):
                raise RecordError(f"{block.where()} must have {block.rows} rows, but has {n_rows}.")
            n_raw += n_rows
        if isinstance(source, IterableSource):
            n_asked = source.n_asked(window.blocks)
            facts.is_last, facts.is_past_end = n_raw < n_asked, n_raw == 0 < n_asked

    def _block(self, block: Block, bad: _BadRows, take_in: TakeIn | None) -> Iterator[Chunk]:
        source = self._recipe.source
        try:
            chunks = source.read(block, 0, bad.note_record if self._skips else None)
            if self._skips and not isinstance(source, IterableSource) and block.stop is not None:
                chunks = list(chunks)  # of a block that is damaged, nothing is given
            yield from chunks if take_in is None else map(take_in, chunks)
        except Exception as error:
            if not self._skips or isinstance(source, IterableSource):  # whose missing rows would look like its end
                if block.path not in str(error):
                    add_note(error, f"in {block.where()}")
                raise
            bad.found.append((BadRow(block.where()), error))

    def _mix(self, window: Window, bad: _BadRows, *, is_whole: bool) -> Iterator[Chunk]:
        """The rows of the blocks of a mix: those of its parts, each position's in its place."""
        as_columns = self._recipe.reads_columns()
        for block in window.blocks:
            pieces = list(block.start.pieces)
            parts = [self._read_once(number, piece) for number, piece, _, _ in pieces]
            if self._skips:
                for part, (_, _, start, _) in zip(parts, pieces, strict=True):
                    part.read_on()
                    if start == 0:  # of all mixed windows that need this one, only the first tells what is bad in it
                        bad.found.extend(part.facts.bad)
            places = block.start.places()
            ends = np.cumsum([stop - start for _, _, start, stop in pieces], dtype=np.int64)
            at_once = len(places) if is_whole else _MIXED_AT_ONCE
            for first in range(0, len(places), max(1, at_once)):
                some = places[first : first + at_once]
                owners = np.searchsorted(ends, some, side="right")
                chunks, local, n_before = [], np.empty(len(some), np.int64), 0
                for owner in np.unique(owners).tolist():
                    mine = owners == owner
                    in_piece = some[mine] - (ends[owner - 1] if owner else 0)
                    low, high, start = int(in_piece.min()), int(in_piece.max()) + 1, pieces[owner][2]
                    chunks.append(parts[owner].slice(start + low, start + high))
                    local[mine] = in_piece - low + n_before
                    n_before += high - low
                yield shuffle_rows(JoinedChunk(chunks), local, as_columns=as_columns)

    def _part(self, number: int) -> WindowReader:
        if number not in self._parts:
            recipe = self._recipe.source.recipes[number]
            self._parts[number] = WindowReader(
                recipe, self._randomness, skips=self._skips, path=(*self._path, number), lap=self._lap
            )
        return self._parts[number]

    def _read_once(self, number: int, window: Window) -> WindowRows:
        """The rows of a whole window of a part, which are kept for a while: a few mixed windows need some of them."""
        kept = self._kept.setdefault(number, OrderedDict())
        if window.key not in kept:
            kept[window.key] = self._part(number).rows(Share(window), keeps=True)
            while len(kept) > _WINDOWS_KEPT:
                kept.popitem(last=False)
        return kept[window.key]

    def _take_in(self, window: Window) -> TakeIn | None:
        """What is done with each chunk of a window at once.

        Where all columns will be wanted, they are made Python's, or put where the loop sees them, while they are in the
        cache; and their memory is there for the next chunk.
        """
        if not window.is_shuffled or not self._recipe.reads_columns():
            return None
        return partial(_decoded, allocate=self._allocate if window.is_given_whole else None)

    def _shuffled(self, rows: Chunk, window: Window, bad: _BadRows) -> Chunk:
        bad.places = places = Permutation(len(rows), window.key).at(np.arange(len(rows)))
        is_later = self._allocate is not None and window.is_given_whole
        return shuffle_rows(rows, places, as_columns=self._recipe.reads_columns(), is_later=is_later)

    def _draws(self, window: Window) -> Draws | None:
        """The random numbers of a window; None if nothing can be drawn."""
        if self._randomness is None or not self._may_draw(window):
            return None
        return Draws(self._randomness, self._place_of(window), gives_back=bool(self._path))

    def _place_of(self, window: Window) -> Place:
        """What the random numbers of a window are keyed by."""
        number = derive_key(window.number, 0, f"part {self._path}") if self._path else window.number
        if window.stretch:
            number = derive_key(number, window.stretch, "stretch")
        return Place(window.epoch, number, 0)

    def _may_draw(self, window: Window) -> bool:
        """Whether random numbers may be drawn: by a user's function, or by a library that asks a store once more."""
        is_plain = getattr(self._recipe.source, "is_plain", False)
        return bool(self._recipe.steps) or not is_plain or not all(is_local(block.path) for block in window.blocks)


def count_in(recipe: Recipe, seed: int | None, *, skips: bool = False) -> Ask:
    """Counts rows in this process."""
    randomness = SampleRandomness(seed or 0, gives_back=True, repeats=False)
    reader = WindowReader(recipe, randomness, skips=skips)
    return lambda requests: [reader.count(request) for request in requests]


class _Cuts:
    """What `take` and `skip` leave of the rows that come to a stage, piece by piece.

    Attributes:
        is_over: whether nothing is left of what follows.
        has_cut: whether anything was left out.
    """

    def __init__(self, window: Window, stage: int) -> None:
        self._cuts = [cut for cut in window.cuts if cut.stage == stage]
        self._seen = [0] * len(self._cuts)
        self.is_over = any(cut.stop <= 0 for cut in self._cuts)
        self.has_cut = False

    def cut(self, rows: Chunk) -> Chunk:
        for i, cut in enumerate(self._cuts):
            n, seen = len(rows), self._seen[i]
            start, stop = max(cut.start - seen, 0), min(cut.stop - seen, n)
            self._seen[i] = seen + n
            self.is_over = self.is_over or seen + n >= cut.stop
            if (start, stop) != (0, n):
                self.has_cut = True
                rows = rows.slice(min(start, n), max(min(start, n), stop))
        return rows


class _Stage:
    """A step, which rows go through piece by piece."""

    def __init__(self, step: Any, number: int, window: Window, bad: _BadRows) -> None:
        self.name = _snake_case(type(step).__name__)
        self.cuts = _Cuts(window, number)
        self._step = step
        self._bad = bad
        self._size: int = getattr(step, "size", 1)
        self._held: list[Chunk] = []
        self._n_in = 0

    def apply(self, rows: Chunk, *, is_end: bool = False) -> Chunk:
        rows = self.cuts.cut(rows)
        if self._size > 1:
            rows = JoinedChunk([*self._held, rows])
            whole = len(rows) if is_end else len(rows) - len(rows) % self._size
            self._held = [rows.slice(whole, len(rows))] if whole < len(rows) else []
            rows = rows.slice(0, whole)
        if not len(rows):
            return rows
        n_before, self._n_in = self._n_in, self._n_in + len(rows)
        bad, is_traced = self._bad, self._bad.is_traced and not self.cuts.has_cut
        made: Chunk = self._step.apply(rows, bad.listen(type(self._step).__name__, n_before, is_traced=is_traced))
        bad.is_traced = is_traced and self._step.keeps_count and len(made) == len(rows)
        return made


class _SharePart:
    """The rows of a window that belong to a share, piece by piece.

    Attributes:
        is_over: whether nothing of what follows belongs to it.
        packs: whether they become tokens.
    """

    def __init__(self, share: Share, recipe: Recipe, *, packs: bool) -> None:
        self._share = share
        self._as_columns = recipe.as_columns and recipe.packing is None
        self.packs = packs and recipe.packing is not None
        self._n_in = self._n_out = 0
        self.is_over = share.most == 0

    def of(self, rows: Chunk) -> Chunk:
        first, step, skip, most = self._share[1:5]
        if (first, step) != (0, 1) and len(rows):
            seen, self._n_in = self._n_in, self._n_in + len(rows)
            local = first - seen if seen <= first else -(seen - first) % step
            rows = every_nth(rows, min(local, len(rows)), step, as_columns=self._as_columns)
        if self.packs:
            rows = join_tokens(rows.rows())
        if not skip and most is None:
            return rows
        n, seen = len(rows), self._n_out
        self._n_out += n
        start = min(max(skip - seen, 0), n)
        stop = n if most is None else max(start, min(skip + most - seen, n))
        self.is_over = most is not None and seen + n >= skip + most
        return rows if (start, stop) == (0, n) else rows.slice(start, stop)


def _step_by_step(stages: Sequence[_Stage], reached: int, begun: Chunk, rest: list[Chunk], lap: Lap) -> Chunk:
    """What the steps make of all rows of a window, of which some are through with step `reached`."""
    rows: Chunk = JoinedChunk(rest)
    for stage in stages[: reached + 1]:
        rows = stage.apply(rows, is_end=True)
        lap(stage.name)
    rows = JoinedChunk([begun, rows])
    for stage in stages[reached + 1 :]:
        rows = stage.apply(rows, is_end=True)
        lap(stage.name)
    return rows


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class _BadRows:
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


def _decoded(chunk: Chunk, allocate: Allocate | None) -> Chunk:
    columns = chunk.columns() if allocate is None else placed_columns(chunk, allocate)
    return ColumnChunk(columns) if columns else chunk


def _look() -> tuple[Any, ...]:
    """Something that differs after random numbers were drawn."""
    state = dict(rng().bit_generator.state)
    counter = state["state"]["counter"].tobytes()
    return counter, state["buffer_pos"], state["has_uint32"], *(generator.glance() for generator in GENERATORS)
