"""The worker's part in loading a stream: reads windows, and cuts batches from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from headrace.base.messages import Place
from headrace.base.randomness import SampleRandomness
from headrace.sources.source import Chunk
from headrace.streams.limits import Cuts
from headrace.streams.rows import JoinedRows, ObjectRows, own_rows
from headrace.streams.steps import OnBadRow
from headrace.streams.stream import Recipe
from headrace.streams.windows import WindowPlan

_MOST_KEPT = 8  # windows; one that was forgotten is read again
_BATCHES_FROM = 2**48  # the places of batches, from which random numbers are keyed, begin after those of windows


class WindowRef(NamedTuple):
    """A window of an epoch, of which some rows may be cut off.

    Attributes:
        first: where windows are too few to be shared, a rank has every `world`-th row of all, beginning with this one.
    """

    epoch: int
    number: int
    cuts: Cuts = ()
    first: int = 0
    world: int = 1


class ReadWindow(NamedTuple):
    """Read a window and tell how many rows it has."""

    window: WindowRef


class CutBatches(NamedTuple):
    """Make batches of `size` rows, from row `start` to row `stop` of a window.

    Attributes:
        number: of the first of them in the epoch, by which random numbers are keyed.
    """

    window: WindowRef
    start: int
    stop: int
    size: int
    number: int


class SendEdges(NamedTuple):
    """Send the rows from `first` to `head` and those from `tail` on as they are, and forget the window."""

    window: WindowRef
    first: int
    head: int
    tail: int


class WindowFetcher:
    """Answers the three messages. A window is a function of its number and epoch, so any worker finds the same in it.

    Args:
        collate: makes a batch of a list of rows, or of columns if the recipe says so.
        is_single: whether it makes single rows, instead.
        on_bad: hears of rows that are left out; if None, they raise.
    """

    def __init__(
        self,
        recipe: Recipe,
        collate: Callable[[Any], Any],
        *,
        seed: int | None,
        randomness: SampleRandomness,
        is_single: bool = False,
        on_bad: OnBadRow | None = None,
    ) -> None:
        self._recipe = recipe
        self._collate = collate
        self._seed = seed
        self._randomness = randomness
        self._is_single = is_single
        self._on_bad = on_bad
        self._plan: tuple[int, WindowPlan] | None = None
        self._kept: OrderedDict[WindowRef, Chunk] = OrderedDict()

    def fetch(self, keys: Any) -> Any:
        match keys:
            case ReadWindow(window):
                return len(self._rows(window))
            case CutBatches(window, start, stop, size, number):
                rows = self._rows(window)
                parts = [rows.slice(i, i + size) for i in range(start, stop, size)]
                made = [self._try(part, window.epoch, i) for i, part in enumerate(parts, number)]
                return [batch for (batch,) in filter(None, made)]
            case SendEdges(window, first, head, tail):
                rows = self._rows(window)
                del self._kept[window]
                return self._plain(rows.slice(first, head)), self._plain(rows.slice(tail, len(rows)))

    def _try(self, rows: Chunk, epoch: int, number: int) -> tuple[Any] | None:
        """The batch, in a tuple; None if it is to be left out."""
        try:
            return (self.collate(rows, epoch, number),)
        except Exception as error:
            if self._on_bad is None:
                raise
            self._on_bad(f"batch {number}", error)
            return None

    def collate(self, rows: Chunk, epoch: int, number: int) -> Any:
        """Batch `number` of an epoch, made of these rows; or what becomes of a single one."""

        def make() -> Any:
            self._randomness.enter_batch()
            if self._is_single:
                return self._collate(rows.rows()[0])
            return self._collate(_own_columns(rows) if self._recipe.as_columns else rows.rows())

        return self._randomness.make(Place(epoch, number + _BATCHES_FROM, 0), make)

    def _plain(self, rows: Chunk) -> Chunk:
        """What can be sent to another process, whatever library the rows come from."""
        return JoinedRows([rows]) if self._recipe.as_columns else ObjectRows(rows.rows())

    def _rows(self, window: WindowRef) -> Chunk:
        if window not in self._kept:
            place = Place(window.epoch, window.number, 0)
            self._kept[window] = self._randomness.make(place, partial(self._read, window))
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return self._kept[window]

    def _read(self, window: WindowRef) -> Chunk:
        self._randomness.enter_batch()
        epoch, number, cuts, first, world = window
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._recipe.plan(self._seed, epoch))
        rows = self._recipe.read(self._plan[1].window(number), cuts, self._on_bad)
        return own_rows(rows, first, world, as_columns=self._recipe.as_columns)


def _own_columns(rows: Chunk) -> dict[str, Any]:
    """The columns, whose arrays may be written to: those of a window are often views of somebody else's memory."""
    columns = rows.columns()
    return {name: column.copy() if isinstance(column, np.ndarray) else column for name, column in columns.items()}
