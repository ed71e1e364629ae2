"""Reads windows: their blocks, shuffled, and what the steps make of the rows."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from headrace.base.errors import RecordError, add_note
from headrace.base.freed_memory import keep_freed_memory
from headrace.base.generators import GENERATORS
from headrace.base.indices import Indices
from headrace.base.keys import derive_key
from headrace.base.later_column import Allocate
from headrace.base.messages import Place
from headrace.base.randomness import SampleRandomness, rng
from headrace.order.permutation import Permutation
from headrace.sources.files import is_local
from headrace.sources.source import BadRecord, Block, Chunk
from headrace.streams.iterables import IterableSource
from headrace.streams.messages import Counted, CountRows
from headrace.streams.mixing import MixSource
from headrace.streams.recipe import Ask, Recipe
from headrace.streams.rows import ArrayRows, ComingRows, JoinedRows, as_one, every_nth, placed_columns, shuffle_rows
from headrace.streams.steps import BadRow, OnBadRow
from headrace.streams.tokens import Tokens
from headrace.streams.windows import Share, Window, describe_block

T = TypeVar("T")
TakeIn: TypeAlias = Callable[[Chunk], Chunk]

_WINDOWS_KEPT = 2  # of each stream of a mix
_RAW_CHARACTERS = 4096  # of a bad row


class ReadRows(NamedTuple):
    """The rows of a share.

    Attributes:
        bad: the rows that were left out, and why.
        is_last: whether the data ended here, and `is_past_end` whether it had ended before.
        is_settled: whether no random numbers were drawn, if anybody watched.
    """

    rows: Chunk
    bad: tuple[tuple[BadRow, Exception], ...] = ()
    is_last: bool = False
    is_past_end: bool = False
    is_settled: bool = False


class WindowReader:
    """Reads the windows of a recipe.

    Guarantees: what it reads is a function of the window; if there is a `randomness`, so are the random numbers that
    the user's functions draw.

    Args:
        skips: whether bad rows are left out; else they raise.
        allocate: gives memory that another process sees, if columns are only sent there.
        path: which part of a mix the recipe is; see `CountRows`.
    """

    def __init__(
        self,
        recipe: Recipe,
        randomness: SampleRandomness | None = None,
        *,
        skips: bool = False,
        allocate: Allocate | None = None,
        path: tuple[int, ...] = (),
    ) -> None:
        self._recipe = recipe
        self._randomness = randomness
        self._skips = skips
        self._allocate = allocate
        self._path = path
        self._parts: dict[int, WindowReader] = {}
        self._kept: OrderedDict[int, ReadRows] = OrderedDict()
        keep_freed_memory()

    def read(self, share: Share, n_steps: int | None = None, *, watch: bool = False) -> ReadRows:
        """The rows of a share, after all steps, or after so many.

        Args:
            watch: whether to find out if random numbers are drawn.
        """
        window, bad = share.window, _BadRows(share.window, skips=self._skips)
        # The parts of a mix have random numbers of their own, which are not those of the mixed window.
        raw = self._mix(window, bad) if isinstance(self._recipe.source, MixSource) else None

        def transform() -> tuple[Chunk, int]:
            rows = self._raw(window.blocks, bad, self._take_in(window)) if raw is None else raw
            return self._steps(self._shuffled(rows, window, bad), window, bad, n_steps), len(rows)

        (rows, n_raw), is_settled = self._drawing(window, transform, watch=watch)
        n_asked = self._recipe.source.n_asked(window.blocks) if isinstance(self._recipe.source, IterableSource) else 0
        return ReadRows(
            self._share(rows, share, n_steps), tuple(bad.found), n_raw < n_asked, n_raw == 0 < n_asked, is_settled
        )

    def rows(self, share: Share) -> Chunk:
        """The rows of a share, after all steps; they are read as they are wanted, where nobody can tell."""
        window = share.window
        n_rows = [block.rows for block in window.blocks]
        is_whole = share == Share(window, is_again=share.is_again) and not window.cuts
        is_told = self._recipe.tells_rows and not self._skips and None not in n_rows
        if not is_whole or not is_told or window.is_shuffled or self._may_draw(window):
            return self.read(share).rows
        chunks = (chunk for block in window.blocks for chunk in self._recipe.source.read(block))
        return ComingRows(chunks, sum(n for n in n_rows if n is not None), window.where())

    def count(self, request: CountRows) -> Counted:
        """How many rows a share has. Block by block, if that tells of other windows, too."""
        share, path, n_steps = request
        if path:
            return self._part(path[0]).count(request._replace(path=path[1:]))
        by_block = self._count_blocks(share, n_steps)
        if by_block is not None:
            return Counted(sum(by_block), by_block, is_settled=True)
        read = self.read(share, n_steps, watch=True)
        return Counted(len(read.rows), None, read.is_settled, read.is_past_end)

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
        bad = _BadRows(window, skips=self._skips)

        def count() -> list[int]:
            read = (self._steps(self._raw([block], bad), window, bad, n_steps) for block in window.blocks)
            return [len(self._share(rows, share, n_steps)) for rows in read]

        counts, is_settled = self._drawing(window, count, watch=True)
        return tuple(counts) if is_settled else None

    def _mix(self, window: Window, bad: _BadRows) -> Chunk:
        """The rows of the blocks of a mix: those of its parts, each position's in its place."""
        mixed = []
        for block in window.blocks:
            pieces = []
            for number, piece, start, stop in block.start.pieces:
                read = self._part(number)._read_once(piece)
                pieces.append(read.rows.slice(start, stop))
                if start == 0:  # of all mixed windows that need this one, only the first tells what is bad in it
                    bad.found.extend(read.bad)
            places = block.start.places()
            mixed.append(shuffle_rows(JoinedRows(pieces), places, as_columns=self._recipe.reads_columns()))
        return as_one(mixed)

    def _part(self, number: int) -> WindowReader:
        if number not in self._parts:
            recipe = self._recipe.source.recipes[number]
            self._parts[number] = WindowReader(recipe, self._randomness, skips=self._skips, path=(*self._path, number))
        return self._parts[number]

    def _read_once(self, window: Window) -> ReadRows:
        """The rows of a whole window, which are kept for a while: a few mixed windows need some of them."""
        if window.key not in self._kept:
            self._kept[window.key] = self.read(Share(window))
            while len(self._kept) > _WINDOWS_KEPT:
                self._kept.popitem(last=False)
        return self._kept[window.key]

    def _take_in(self, window: Window) -> TakeIn | None:
        """What is done with each chunk of a window at once.

        Where all columns will be wanted, they are made Python's, or put where the loop sees them, while they are in the
        cache; and their memory is there for the next chunk.
        """
        if not window.is_shuffled or not self._recipe.reads_columns():
            return None
        return partial(_decoded, allocate=self._allocate if window.is_given_whole else None)

    def _raw(self, blocks: Iterable[Block], bad: _BadRows, take_in: TakeIn | None = None) -> Chunk:
        chunks: list[Chunk] = []
        for block in blocks:
            read = self._block(block, bad, take_in)
            n_rows = sum(map(len, read))
            if self._recipe.tells_rows and not self._skips and block.rows not in (None, n_rows):
                raise RecordError(f"{describe_block(block)} must have {block.rows} rows, but has {n_rows}.")
            bad.lengths.append(n_rows)
            chunks += read
        return as_one(chunks)

    def _block(self, block: Block, bad: _BadRows, take_in: TakeIn | None) -> list[Chunk]:
        source = self._recipe.source
        try:
            chunks = source.read(block, 0, bad.note_record if self._skips else None)
            return list(chunks if take_in is None else map(take_in, chunks))
        except Exception as error:
            if not self._skips or isinstance(source, IterableSource):  # whose missing rows would look like its end
                if block.path not in str(error):
                    add_note(error, f"in {describe_block(block)}")
                raise
            bad.found.append((BadRow(describe_block(block)), error))
            return []

    def _shuffled(self, rows: Chunk, window: Window, bad: _BadRows) -> Chunk:
        if not window.is_shuffled or not len(rows):
            return rows
        bad.places = places = Permutation(len(rows), window.key).at(np.arange(len(rows)))
        is_later = self._allocate is not None and window.is_given_whole
        return shuffle_rows(rows, places, as_columns=self._recipe.reads_columns(), is_later=is_later)

    def _steps(self, rows: Chunk, window: Window, bad: _BadRows, n_steps: int | None) -> Chunk:
        steps = self._recipe.steps[:n_steps]
        is_traced = True  # whether the number of a row is still that of its record
        for stage, step in enumerate(steps):
            n_before = len(rows)
            rows = _cut_rows(rows, stage, window)
            is_traced = is_traced and len(rows) == n_before
            rows = step.apply(rows, bad.listen(type(step).__name__, is_traced=is_traced))
            is_traced = is_traced and step.keeps_count and len(rows) == n_before
        return _cut_rows(rows, len(steps), window)

    def _share(self, rows: Chunk, share: Share, n_steps: int | None) -> Chunk:
        recipe = self._recipe
        rows = every_nth(rows, share.first, share.step, as_columns=recipe.as_columns and recipe.packing is None)
        if recipe.packing is not None and n_steps is None:
            rows = Tokens.of(rows.rows())
        stop = len(rows) if share.most is None else min(len(rows), share.skip + share.most)
        return rows if (share.skip, stop) == (0, len(rows)) else rows.slice(min(share.skip, stop), stop)

    def _drawing(self, window: Window, make: Callable[[], T], *, watch: bool) -> tuple[T, bool]:
        """What `make` makes, with the random numbers of a window, and whether it is known to have drawn none."""
        randomness = self._randomness
        if randomness is None:
            return make(), False
        if not self._may_draw(window):
            return make(), watch

        def watched() -> tuple[T, bool]:
            randomness.enter_batch()
            before = _look() if watch else None
            made = make()
            return made, watch and _look() == before

        number = derive_key(window.number, 0, f"part {self._path}") if self._path else window.number
        return randomness.make(Place(window.epoch, number, 0), watched)

    def _may_draw(self, window: Window) -> bool:
        """Whether random numbers may be drawn: by a user's function, or by a library that asks a store once more."""
        is_plain = getattr(self._recipe.source, "is_plain", False)
        return bool(self._recipe.steps) or not is_plain or not all(is_local(block.path) for block in window.blocks)


def count_in(recipe: Recipe, seed: int | None, *, skips: bool = False) -> Ask:
    """Counts rows in this process."""
    randomness = SampleRandomness(seed or 0, gives_back=True, repeats=False)
    reader = WindowReader(recipe, randomness, skips=skips)
    return lambda requests: [reader.count(request) for request in requests]


class _BadRows:
    """What is bad in a window: noted if bad rows are left out, else raised, with a note of where it was.

    Attributes:
        lengths: of the blocks, in rows.
        places: of the rows before they were shuffled; None if they were not.
    """

    def __init__(self, window: Window, *, skips: bool) -> None:
        self.found: list[tuple[BadRow, Exception]] = []
        self.lengths: list[int] = []
        self.places: Indices | None = None
        self._window = window
        self._skips = skips

    def note_record(self, record: BadRecord) -> None:
        self.found.append((BadRow(record.where, record.raw.decode(errors="replace")), ValueError(record.error)))

    def listen(self, step: str, *, is_traced: bool) -> OnBadRow:
        """What a step tells of bad rows."""

        def note(index: int, row: Any, error: Exception) -> None:
            where = f"{step} at {self._where(index) if is_traced else f'a row of {self._window.where()}'}"
            if not self._skips:
                add_note(error, where)
                raise error
            self.found.append((BadRow(where, repr(row)[:_RAW_CHARACTERS]), error))

        return note

    def _where(self, index: int) -> str:
        place = index if self.places is None else int(self.places[index])
        ends = list(accumulate(self.lengths))
        number = bisect_right(ends, place)
        if number >= len(ends):
            return f"a row of {self._window.where()}"
        return f"row {place - (ends[number] - self.lengths[number])} of {describe_block(self._window.blocks[number])}"


def _decoded(chunk: Chunk, allocate: Allocate | None) -> Chunk:
    columns = chunk.columns() if allocate is None else placed_columns(chunk, allocate)
    return ArrayRows(columns) if columns else chunk


def _look() -> tuple[Any, ...]:
    """Something that differs after random numbers were drawn."""
    state = dict(rng().bit_generator.state)
    counter = state["state"]["counter"].tobytes()
    return counter, state["buffer_pos"], state["has_uint32"], *(generator.glance() for generator in GENERATORS)


def _cut_rows(rows: Chunk, stage: int, window: Window) -> Chunk:
    for cut in window.cuts:
        if cut.stage == stage:
            rows = rows.slice(cut.start, min(cut.stop, len(rows)))
    return rows
