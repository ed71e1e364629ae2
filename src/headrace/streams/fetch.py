"""The worker's part in loading a stream: reads windows, and cuts batches from them."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain, pairwise
from typing import Any

from headrace.base.later_column import Allocate
from headrace.base.messages import Place
from headrace.base.randomness import SampleRandomness
from headrace.sources.source import Chunk
from headrace.streams.borders import equal_borders
from headrace.streams.column_parts import ColumnParts
from headrace.streams.messages import (
    BatchesCut,
    Counted,
    CountRows,
    CutBatches,
    JoinBatch,
    ReadWindow,
    SendColumns,
    SendRows,
    WindowRead,
)
from headrace.streams.reading import ReadRows, WindowReader
from headrace.streams.recipe import Recipe
from headrace.streams.rows import ComingRows, JoinedRows, ObjectRows, own_columns, pieces, placed_columns
from headrace.streams.steps import BadRow
from headrace.streams.text import text_of
from headrace.streams.tokens import Tokens
from headrace.streams.windows import Share

_MOST_KEPT = 8  # windows; one that was forgotten is read again
_BATCHES_FROM = 2**48  # the places of batches, from which random numbers are keyed, begin after those of windows


class WindowFetcher:
    """Answers the messages of the loop. A window tells all that is needed to read it, so any worker can.

    Args:
        collate: makes a batch of a list of rows, or of columns if the recipe says so.
        is_single: whether it makes single rows, instead.
        is_apart: whether the loop is in another process.
        allocate: gives memory that the loop can see, if it makes the batches, of columns that are read here.
        on_bad: hears of rows and batches that are left out, each once; if None, they raise.
    """

    def __init__(
        self,
        recipe: Recipe,
        collate: Callable[[Any], Any],
        *,
        randomness: SampleRandomness,
        is_single: bool = False,
        is_apart: bool = False,
        allocate: Allocate | None = None,
        on_bad: Callable[[Any, Exception], None] | None = None,
    ) -> None:
        self._recipe = recipe
        self._collate = collate
        self._randomness = randomness
        self._is_single = is_single
        runs_only_ours = getattr(recipe.source, "is_plain", False) and not recipe.steps
        self._sends_anything = not is_apart or runs_only_ours
        self._on_bad = on_bad
        self._reader = WindowReader(recipe, randomness, skips=on_bad is not None, allocate=allocate)
        self._allocate = allocate
        self._kept: OrderedDict[tuple[Any, ...], Chunk] = OrderedDict()
        makes_lists = not (is_single or recipe.as_columns or recipe.packing or recipe.draws_in_collate)
        self._keeps_strings = makes_lists and _keeps_strings(collate)

    def fetch(self, keys: Any) -> Any:
        match keys:
            case ReadWindow(share):
                return self._read(share)
            case CutBatches(share, start, stop, size, number):
                return self._cut(self._rows(share, start), start, stop, size, (share.window.epoch, number))
            case SendRows(share, start, stop, is_last):
                return self._sendable(self._taken(share, start, is_last=is_last).slice(start, stop))
            case SendColumns():
                return self._columns(keys)
            case CountRows():
                return self._count(keys)
            case JoinBatch(spans, number):
                rows = JoinedRows([self._rows(share, start).slice(start, stop) for share, start, stop in spans])
                return self._cut(rows, 0, len(rows), len(rows), (spans[0].share.window.epoch, number))

    def _read(self, share: Share) -> WindowRead:
        try:
            read = self._reader.read(share)
        except Exception as error:
            if self._on_bad is None:
                raise
            read = ReadRows(JoinedRows([]), ((BadRow(share.window.where()), error),))
        if self._on_bad is not None and not share.is_again:
            for row, reason in read.bad:
                self._on_bad(row, reason)
        text = text_of(read.rows) if self._keeps_strings else None
        if text is None:
            self._keep(share, read.rows)
        return WindowRead(len(read.rows), read.is_last, text)

    def _count(self, request: CountRows) -> Counted:
        try:
            return self._reader.count(request)
        except Exception:
            if self._on_bad is None:
                raise
            return Counted(0)  # whoever reads it will say why

    def _rows(self, share: Share, first: int) -> Chunk:
        """The rows of a share, at least from `first` on. What is bad in it was told before."""
        rows = self._kept.get(_identity(share))
        if rows is None or (isinstance(rows, ComingRows) and first < rows.first):
            rows = self._reader.rows(share)
            self._keep(share, rows)
        return rows

    def _taken(self, share: Share, first: int, *, is_last: bool) -> Chunk:
        rows = self._rows(share, first)
        if is_last:
            del self._kept[_identity(share)]
        return rows

    def _columns(self, request: SendColumns) -> ColumnParts:
        share, start, stop, at_once, is_last = request
        rows = self._taken(share, start, is_last=is_last)
        ranges = pairwise(equal_borders(start, stop, at_once))
        parts = chain.from_iterable(pieces(rows, first, last) for first, last in ranges)
        # Each part is put where the loop sees it before the next one is read: while it is in the cache.
        return ColumnParts([(placed_columns(part, self._allocate), len(part)) for part in parts])

    def _keep(self, share: Share, rows: Chunk) -> None:
        self._kept[_identity(share)] = rows
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)

    def _cut(self, rows: Chunk, start: int, stop: int, size: int, first: tuple[int, int]) -> list[Any] | BatchesCut:
        epoch, number = first
        batches: list[Any] = []
        lost = []
        for i, samples in enumerate(self._samples(rows.slice(start, stop), size)):
            try:
                batches.append(self._make(samples, epoch, number + i))
            except Exception as error:
                if self._on_bad is None:
                    raise
                self._on_bad(BadRow(f"batch {number + i}"), error)
                lost.append(i)
        return BatchesCut(batches, tuple(lost)) if lost else batches  # a list of lists of strings is sent in no time

    def collate(self, rows: Chunk, epoch: int, number: int) -> Any:
        """Batch `number` of an epoch, made of these rows; or what becomes of a single one."""
        [samples] = self._samples(rows, len(rows))
        return self._make(samples, epoch, number)

    def _make(self, samples: Any, epoch: int, number: int) -> Any:
        if not self._recipe.draws_in_collate:
            return self._collate(samples)

        def make() -> Any:
            self._randomness.enter_batch()
            return self._collate(samples)

        return self._randomness.make(Place(epoch, number + _BATCHES_FROM, 0), make)

    def _samples(self, rows: Chunk, size: int) -> Iterable[Any]:
        """What is collated: for each batch of `size` rows."""
        packing = self._recipe.packing
        if packing is not None:
            rows, size = ObjectRows(packing.rows(rows)), -(-size // packing.length)
        if self._is_single:
            return rows.rows()
        starts = range(0, len(rows), size)
        if self._recipe.as_columns:  # whose types may depend on which rows there are
            return (own_columns(rows.slice(start, min(start + size, len(rows))).columns()) for start in starts)
        objects = rows.rows()  # of all batches at once, which is much quicker
        return (objects[start : start + size] for start in starts)

    def _sendable(self, rows: Chunk) -> Chunk | None:
        """What can be sent to the loop, whatever library the rows come from; None if nothing can."""
        plain = self._plain(rows)
        if self._sends_anything:
            return plain
        try:
            pickle.dumps(plain)
        except Exception:  # noqa: BLE001 (whatever the rows raise)
            return None
        return plain

    def _plain(self, rows: Chunk) -> Chunk:
        if self._recipe.packing is not None:
            return rows if isinstance(rows, Tokens) else JoinedRows([rows])
        if not self._recipe.as_columns:
            return ObjectRows(rows.rows())
        return JoinedRows([rows])


def _identity(share: Share) -> tuple[Any, ...]:
    return (share.window.key, *share[1:])


def _keeps_strings(collate: Callable[[Any], Any]) -> bool:
    """Whether a list of strings is collated to itself, by a function that draws no random numbers."""
    strings = ["some", "strings"]
    try:
        return collate(strings) is strings
    except Exception:  # noqa: BLE001 (whatever it raises for strings)
        return False
