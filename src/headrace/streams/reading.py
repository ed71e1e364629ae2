"""Reads windows: their blocks, shuffled, and what the steps make of the rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from headrace.base.errors import RecordError, add_note
from headrace.base.generators import derive_key
from headrace.base.lazy_column import Allocate
from headrace.base.messages import Place
from headrace.base.randomness import Draws, SampleRandomness
from headrace.base.world import keep_freed_memory
from headrace.order.permutation import Permutation
from headrace.sources.chunks import ColumnChunk, JoinedChunk
from headrace.sources.files import is_local
from headrace.sources.source import Block, Chunk, Stretch
from headrace.streams.messages import Counted, CountRows
from headrace.streams.mixing import MixSource
from headrace.streams.recipe import Ask, Recipe
from headrace.streams.rows import as_one, placed_columns, shuffle_rows
from headrace.streams.stages import BadRows, Lap, RowRange, SharePart, Stage, StageRunner, cuts_after, glance
from headrace.streams.steps import BadRow
from headrace.streams.user_sources import IterableSource
from headrace.streams.window_rows import ReadFacts, WindowRows
from headrace.streams.windows import Share, Window

TakeIn: TypeAlias = Callable[[Chunk], Chunk]

_WINDOWS_KEPT = 2  # of each stream of a mix
_MIXED_AT_ONCE = 256  # rows


def _no_lap(stage: str) -> None:
    """Nothing is timed."""


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
        self._runner = StageRunner(lap, is_seeded=randomness is not None)
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

    def count(self, request: CountRows, length_of: Callable[[Any], int] = len) -> Counted:
        """How many rows a share has. Block by block, if that tells of other windows, too.

        Args:
            length_of: measures a row, if that is wanted.
        """
        share, path, n_steps, measures = request
        if path:
            measure = self._recipe.source.length if measures and len(path) == 1 else length_of
            return self._part(path[0]).count(request._replace(path=path[1:]), measure)
        if measures:
            return self._measure(share, length_of)
        by_block = self._count_blocks(share, n_steps)
        if by_block is not None:
            return Counted(sum(by_block), by_block, is_settled=True)
        rows = self.rows(share, n_steps)
        is_settled = self._drain(rows)
        return Counted(rows.end, None, is_settled, rows.facts.is_past_end)

    def sequence_lengths(self, window: Window) -> list[int]:
        """How many tokens each row of a window has, before they are packed."""
        packing = self._recipe.packing
        assert packing is not None
        rows = self.rows(Share(window), len(self._recipe.steps))
        draws, rows.is_entered = rows.facts.draws, True
        lengths: list[int] = []
        with nullcontext() if draws is None else draws:
            if draws is not None:
                draws.seen = glance()
            while not rows.is_read:
                lengths += [len(packing.join([row])) for chunk in rows.some(seconds=1.0) for row in chunk.rows()]
            if draws is not None:
                draws.is_over = True
        return lengths

    def _measure(self, share: Share, length_of: Callable[[Any], int]) -> Counted:
        lengths: list[int] = []
        rows = self.rows(share)
        is_settled = self._drain(rows, lambda chunk: lengths.extend(map(length_of, chunk.rows())))
        return Counted(rows.end, None, is_settled, rows.facts.is_past_end, np.array(lengths, np.int64))

    def _drain(self, rows: WindowRows, look: Callable[[Chunk], None] | None = None) -> bool:
        """Read all rows, and forget them; whether they are known to have drawn no random numbers.

        Args:
            look: sees all rows before.
        """
        draws, rows.is_entered = rows.facts.draws, True
        with nullcontext() if draws is None else draws:
            if draws is not None:
                draws.seen = glance()
            while not rows.is_read:
                for chunk in rows.some(seconds=1.0):
                    if look is not None:
                        look(chunk)
            if draws is None:
                return self._randomness is not None
            draws.is_over = True
            return not rows.facts.has_drawn and glance() == draws.seen

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
        window, bad = share.window, BadRows(share.window, facts.bad, skips=self._skips)
        steps = self._recipe.steps[:n_steps]
        stages = [Stage(step, number, window, bad) for number, step in enumerate(steps)]
        cuts, part = cuts_after(window, len(steps)), SharePart(share, self._recipe, packs=n_steps is None)
        may_end: list[Stage | RowRange | SharePart] = [*stages, *cuts, part]
        for section in self._sections(window, facts):
            raw = self._raw(section, bad, facts)
            for rows in self._runner.run(stages, raw) if stages else raw:
                for cut in cuts:
                    rows = cut.keep(rows)
                rows = part.of(rows)
                if part.packs:
                    self._lap("pack")
                yield rows
                if any(one.is_over for one in may_end):
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
                facts.has_drawn = facts.has_drawn or glance() != facts.draws.seen
                facts.draws.restart(self._place_of(section))
                facts.draws.seen = glance()

    def _raw(self, window: Window, bad: BadRows, facts: ReadFacts) -> Iterator[Chunk]:
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

    def _blocks(self, window: Window, bad: BadRows, facts: ReadFacts) -> Iterator[Chunk]:
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

    def _block(self, block: Block, bad: BadRows, take_in: TakeIn | None) -> Iterator[Chunk]:
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

    def _mix(self, window: Window, bad: BadRows, *, is_whole: bool) -> Iterator[Chunk]:
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
                for owner in np.flatnonzero(np.bincount(owners)).tolist():
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
        if not window.is_shuffled or not self._recipe.reads_columns() or self._keeps_lazy:
            return None
        return partial(_decoded, allocate=self._allocate if window.is_given_whole else None)

    def _shuffled(self, rows: Chunk, window: Window, bad: BadRows) -> Chunk:
        bad.places = places = Permutation(len(rows), window.key).at(np.arange(len(rows)))
        is_later = self._keeps_lazy or (self._allocate is not None and window.is_given_whole)
        return shuffle_rows(rows, places, as_columns=self._recipe.reads_columns(), is_later=is_later)

    @property
    def _keeps_lazy(self) -> bool:
        """Whether columns take no memory before rows of them are wanted, however they are shuffled."""
        return getattr(self._recipe.source, "keeps_lazy", False)

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


def lengths_in(recipe: Recipe, seed: int | None, *, skips: bool = False) -> Callable[[Window], list[int]]:
    """Tells how many tokens each row of a window has, by reading it in this process."""
    randomness = SampleRandomness(seed or 0, gives_back=True, repeats=False)
    return WindowReader(recipe, randomness, skips=skips).sequence_lengths


def count_in(recipe: Recipe, seed: int | None, *, skips: bool = False) -> Ask:
    """Counts rows in this process."""
    randomness = SampleRandomness(seed or 0, gives_back=True, repeats=False)
    reader = WindowReader(recipe, randomness, skips=skips)
    return lambda requests: [reader.count(request) for request in requests]


def _decoded(chunk: Chunk, allocate: Allocate | None) -> Chunk:
    columns = chunk.columns() if allocate is None else placed_columns(chunk, allocate)
    return ColumnChunk(columns) if columns else chunk
