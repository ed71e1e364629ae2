"""The worker's part in loading a stream: reads windows, and cuts batches from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from headrace.base.messages import Place
from headrace.base.randomness import SampleRandomness
from headrace.sources.source import Chunk
from headrace.streams.rows import JoinedRows, ObjectRows
from headrace.streams.steps import OnBadRow
from headrace.streams.stream import Recipe
from headrace.streams.windows import WindowPlan

_MOST_KEPT = 8  # windows; one that was forgotten is read again


class ReadWindow(NamedTuple):
    """Read a window and tell how many rows it has."""

    epoch: int
    window: int


class CutBatches(NamedTuple):
    """Make batches of `size` rows, from row `start` to row `stop` of a window."""

    epoch: int
    window: int
    start: int
    stop: int
    size: int


class SendEdges(NamedTuple):
    """Send the rows before `head` and from `tail` on as they are, and forget the window."""

    epoch: int
    window: int
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
        self._kept: OrderedDict[tuple[int, int], Chunk] = OrderedDict()

    def fetch(self, keys: Any) -> Any:
        match keys:
            case ReadWindow(epoch, window):
                return len(self._rows(epoch, window))
            case CutBatches(epoch, window, start, stop, size):
                rows = self._rows(epoch, window)
                return [self.collate(rows.slice(i, i + size)) for i in range(start, stop, size)]
            case SendEdges(epoch, window, first, head, tail):
                rows = self._rows(epoch, window)
                del self._kept[epoch, window]
                return self._plain(rows.slice(first, head)), self._plain(rows.slice(tail, len(rows)))

    def collate(self, rows: Chunk) -> Any:
        """A batch of these rows, or what becomes of a single one."""
        if self._is_single:
            return self._collate(rows.rows()[0])
        return self._collate(rows.columns() if self._recipe.as_columns else rows.rows())

    def _plain(self, rows: Chunk) -> Chunk:
        """What can be sent to another process, whatever library the rows come from."""
        return JoinedRows([rows]) if self._recipe.as_columns else ObjectRows(rows.rows())

    def _rows(self, epoch: int, number: int) -> Chunk:
        if (epoch, number) not in self._kept:
            place = Place(epoch, number, 0)
            self._kept[epoch, number] = self._randomness.make(place, partial(self._read, epoch, number))
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return self._kept[epoch, number]

    def _read(self, epoch: int, number: int) -> Chunk:
        self._randomness.enter_batch()
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._recipe.plan(self._seed, epoch))
        return self._recipe.read(self._plan[1].window(number), self._on_bad)
