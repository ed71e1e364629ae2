"""The worker's part in loading a stream: reads windows, and cuts batches from them."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any, TypeAlias

from headrace.base.errors import add_note
from headrace.base.lazy_column import Allocate
from headrace.base.messages import BadSample, Failed, Finished, Outcome, Place, Skipped
from headrace.base.randomness import SampleRandomness
from headrace.sources.chunks import JoinedChunk, ObjectChunk
from headrace.sources.source import Chunk
from headrace.streams.loop_batches import ColumnParts, text_of
from headrace.streams.messages import (
    BatchesCut,
    Counted,
    CountRows,
    CutBatches,
    JoinBatch,
    ReadOn,
    SendColumns,
    SendRows,
    WindowRead,
    equal_borders,
)
from headrace.streams.reading import WindowReader
from headrace.streams.recipe import Recipe
from headrace.streams.rows import own_columns, placed_columns
from headrace.streams.steps import BadRow
from headrace.streams.tokens import TOKENS, PackedArrays, Packing
from headrace.streams.window_rows import WindowRows
from headrace.streams.windows import Share

OnBad: TypeAlias = Callable[[Any, Exception], None]
"""Hears of rows and batches that are left out, each once."""

_MOST_KEPT = 8  # windows; one that was forgotten is read again
_BATCHES_FROM = 2**48  # the places of batches, from which random numbers are keyed, begin after those of windows
_FIRST_READ_S = 0.01  # that a worker reads before it says what there is
_READ_S = 0.05
_RAW_CHARACTERS = 4096  # of a bad row


@dataclass(frozen=True)
class StreamJob:
    """What workers read a stream with.

    Attributes:
        batched: whether rows are collated to batches.
        cuts_later: whether the loop makes batches, of columns that workers have only read.
    """

    recipe: Recipe
    batched: bool
    cuts_later: bool = False

    def open(self, workplace: Any) -> WindowFetcher:
        """What answers the requests of a `StreamPlan`, in a worker."""
        return WindowFetcher(self, workplace)


class BatchMaker:
    """Makes batches of rows, in workers and in the loop alike."""

    def __init__(self, reader: StreamJob, workplace: Any, randomness: SampleRandomness) -> None:
        recipe = reader.recipe
        self._recipe = recipe
        self._randomness = randomness
        self._workplace = workplace
        self._is_single = not reader.batched
        self._collate: Callable[[Any], Any] = workplace.collate
        collates_by_default = workplace.job.collate_fn is None
        self._packs_arrays = recipe.packing is not None and collates_by_default
        if recipe.as_columns and recipe.packing is None and collates_by_default:
            self._collate = self.collate_columns
        makes_lists = not (self._is_single or recipe.as_columns or recipe.packing or recipe.draws_in_collate)
        self.keeps_strings = makes_lists and _keeps_strings(self._collate)

    def collate_columns(self, columns: dict[str, Any]) -> dict[str, Any]:
        """A batch of columns, whose arrays nobody else has."""
        batch: dict[str, Any] = self._workplace.convert_columns(columns)
        return batch

    def cut(self, rows: Chunk, size: int, first: tuple[int, int], on_bad: OnBad | None) -> list[Any] | BatchesCut:
        """Batches of `size` rows, the first of which has this epoch and number."""
        epoch, number = first
        batches: list[Any] = []
        lost = []
        all_samples = self._samples(rows, size)
        self._workplace.lap("read")
        for i, samples in enumerate(all_samples):
            try:
                batches.append(self._make(samples, epoch, number + i, on_bad))
            except _NothingLeftError:
                lost.append(i)
            except Exception as error:
                if on_bad is None:
                    raise
                on_bad(BadRow(f"batch {number + i}"), error)
                lost.append(i)
        self._workplace.lap("collate")
        return BatchesCut(batches, tuple(lost)) if lost else batches  # a list of lists of strings is sent in no time

    def join(self, rows: Chunk, epoch: int, number: int) -> Outcome:
        """The outcome of batch `number`, whose rows come from several windows."""
        bad: list[BadSample] = []

        def note(key: Any, error: Exception) -> None:
            bad.append(self._workplace.describe_bad(key, number, error))

        on_bad = note if self._workplace.job.skip_errors else None
        try:
            [samples] = self._samples(rows, len(rows))
            batch = self._workplace.timed(partial(self._make, samples, epoch, number, on_bad))
            return Finished(number, batch, tuple(bad))
        except _NothingLeftError:
            return Skipped(number, tuple(bad))
        except Exception as error:  # noqa: BLE001 (any error of the user's code is told to the user)
            if not self._workplace.job.skip_errors:
                return Failed(number, error)
            return Skipped(number, (self._workplace.describe_bad(f"batch {number}", number, error),))

    def _make(self, samples: Any, epoch: int, number: int, on_bad: OnBad | None) -> Any:
        if not self._recipe.draws_in_collate:
            return self._collated(samples)

        def make() -> Any:
            self._randomness.enter_batch()
            return self._collated(self._mapped(samples, number, on_bad))

        return self._randomness.make(Place(epoch, number + _BATCHES_FROM, 0), make)

    def _collated(self, samples: Any) -> Any:
        if not isinstance(samples, PackedArrays):
            return self._collate(samples)
        batch = self.collate_columns(samples.columns)
        return batch[TOKENS] if samples.is_one else batch

    def _mapped(self, samples: Any, number: int, on_bad: OnBad | None) -> Any:
        """What the steps after packing make of rows; of those of a batch, some may be left out."""
        steps = self._recipe.packed_steps
        if not steps:
            return samples

        def note(index: int, row: Any, error: Exception) -> None:
            where = f"Map at row {index} of batch {number}"
            if on_bad is None:
                add_note(error, where)
                raise error
            on_bad(BadRow(where, repr(row)[:_RAW_CHARACTERS]), error)

        rows: Chunk = ObjectChunk([samples] if self._is_single else samples)
        for step in steps:
            rows = step.apply(rows, note)
        made: list[Any] = rows.rows()
        if not made:
            raise _NothingLeftError
        return made[0] if self._is_single else made

    def _samples(self, rows: Chunk, size: int) -> Iterable[Any]:
        """What is collated: for each batch of `size` rows."""
        packing = self._recipe.packing
        if packing is not None:
            return self._packed(packing, rows, size)
        if self._is_single:
            singles: list[Any] = rows.rows()
            return singles
        starts = range(0, len(rows), size)
        if self._recipe.as_columns:  # whose types may depend on which rows there are
            return (own_columns(rows.slice(start, min(start + size, len(rows))).lazy_columns()) for start in starts)
        objects = rows.rows()  # of all batches at once, which is much quicker
        return (objects[start : start + size] for start in starts)

    def _packed(self, packing: Packing, tokens: Chunk, size: int) -> Iterable[Any]:
        """The same, of tokens. Batches of arrays are not made of rows, unless steps come between."""
        steps = self._recipe.packed_steps
        if self._packs_arrays and not steps and not self._is_single:
            made = [packing.arrays(tokens.slice(i, min(i + size, len(tokens)))) for i in range(0, len(tokens), size)]
            if None not in made:
                return made
        rows = packing.rows(tokens, as_arrays=self._packs_arrays or bool(steps))
        if self._is_single:
            return rows
        n_rows = -(-size // packing.length)
        return (rows[start : start + n_rows] for start in range(0, len(rows), n_rows))


class _NothingLeftError(Exception):
    """All rows of a batch were left out."""


class WindowFetcher:
    """Answers the requests of a `StreamPlan`. A window tells all that is needed to read it, so any worker can.

    Args:
        workplace: where it works; see `headrace.engines.worker.Workplace`.
    """

    def __init__(self, reader: StreamJob, workplace: Any) -> None:
        recipe, job = reader.recipe, workplace.job
        self._recipe = recipe
        seed = job.base_seed if job.seed is None else job.seed
        randomness = workplace.randomness(seed, repeats=False)
        self.maker = BatchMaker(reader, workplace, randomness)
        runs_only_ours = getattr(recipe.source, "is_plain", False) and not recipe.steps
        self._sends_anything = not workplace.is_apart or runs_only_ours
        self._on_bad: OnBad | None = workplace.on_bad
        self._allocate: Allocate | None = workplace.allocate if workplace.is_apart and reader.cuts_later else None
        self._reader = WindowReader(
            recipe, randomness, skips=job.skip_errors, allocate=self._allocate, lap=workplace.lap
        )
        self._kept: OrderedDict[tuple[Any, ...], WindowRows] = OrderedDict()

    def fetch(self, keys: Any) -> Any:
        match keys:
            case ReadOn(share, part, first):
                return self._read_on(share, part, first)
            case CutBatches(share, start, stop, size, number):
                rows = self._rows(share, start).slice(start, stop)
                return self.maker.cut(rows, size, (share.window.epoch, number), self._on_bad)
            case SendRows(share, start, stop, is_last):
                return self._sendable(self._taken(share, start, is_last=is_last).slice(start, stop))
            case SendColumns():
                return self._columns(keys)
            case CountRows():
                return self._count(keys)
            case JoinBatch(spans, number):
                joined = JoinedChunk([self._rows(share, start).slice(start, stop) for share, start, stop, _ in spans])
                return self.maker.cut(joined, len(joined), (spans[0].share.window.epoch, number), self._on_bad)

    def _read_on(self, share: Share, part: int, first: int) -> WindowRead:
        rows = self._kept.get(_identity(share)) if part else None
        if rows is None:
            rows = self._open(share)
        n_bad = len(rows.facts.bad)
        try:
            rows.read_on(_READ_S if part else _FIRST_READ_S, wanted=first)
        except Exception as error:
            if self._on_bad is None:
                raise
            rows.is_read = True
            rows.facts.bad.append((BadRow(share.window.where()), error))
        if self._on_bad is not None and not share.is_again:
            for row, reason in rows.facts.bad[n_bad:]:
                self._on_bad(row, reason)
        start, text = rows.first, text_of(rows.held) if self.maker.keeps_strings else None
        if text is not None:
            rows.taken()
        ends, origin = rows.is_read and self._reader.ends(share), getattr(self._recipe.source, "origin", None)
        return WindowRead(rows.end, rows.is_read, rows.facts.is_last, start, text, ends, origin)

    def _count(self, request: CountRows) -> Counted:
        try:
            return self._reader.count(request)
        except Exception:
            if self._on_bad is None:
                raise
            return Counted(0)  # whoever reads it will say why

    def _rows(self, share: Share, first: int) -> WindowRows:
        """The rows of a share, at least from `first` on. What is bad in it was told before."""
        rows = self._kept.get(_identity(share))
        return self._open(share) if rows is None or first < rows.first else rows

    def _open(self, share: Share) -> WindowRows:
        rows = self._reader.rows(share)
        self._kept[_identity(share)] = rows
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return rows

    def _taken(self, share: Share, first: int, *, is_last: bool) -> WindowRows:
        rows = self._rows(share, first)
        if is_last:
            self._kept.pop(_identity(share), None)
        return rows

    def _columns(self, request: SendColumns) -> ColumnParts:
        share, start, stop, at_once, is_last = request
        rows = self._taken(share, start, is_last=is_last)
        ranges = pairwise(equal_borders(start, stop, at_once))
        parts = chain.from_iterable(rows.parts(first, last) for first, last in ranges)
        # Each part is put where the loop sees it before the next one is read: while it is in the cache.
        return ColumnParts([(placed_columns(part, self._allocate), len(part)) for part in parts])

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
        is_as_wanted = self._recipe.as_columns or self._recipe.packing is not None
        return rows if is_as_wanted else ObjectChunk(rows.rows())


def _identity(share: Share) -> tuple[Any, ...]:
    return (share.window.key, *share[1:])


def _keeps_strings(collate: Callable[[Any], Any]) -> bool:
    """Whether a list of strings is collated to itself, by a function that draws no random numbers."""
    strings = ["some", "strings"]
    try:
        return collate(strings) is strings
    except Exception:  # noqa: BLE001 (whatever it raises for strings)
        return False
