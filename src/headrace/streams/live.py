"""Live streams: windows of whatever rows have arrived, read in the loader's process, and handed to the workers.

A live source has no blocks that could be listed. Its rows arrive at a `LiveFeed`; whenever the plan can open a window,
that gets the rows that are there by then. They are sent along with it, so any worker can make its batches, and again
after a crash. What was handed out is kept until the loop has it: then the positions after it are known, for a state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.endings import Keeper
from headrace.base.errors import warn_user
from headrace.base.generators import derive_key
from headrace.sources.chunks import skip_rows
from headrace.sources.live import MOST_ROWS, RECONNECTS, Connector, Entry, LiveFeed
from headrace.sources.retry import Retries
from headrace.sources.source import Block, Chunk, FileVersion, OnBad
from headrace.streams.user_sources import HandedBlock, OpenBlocks
from headrace.streams.windows import Blocks, Share, Window

if TYPE_CHECKING:
    from headrace.streams.counts import RowCounts
    from headrace.streams.recipe import Ask, Recipe


class LiveSource:
    """Rows that arrive over a connection, one after the other, for ever.

    Args:
        retries: how often to connect again after a loss; rows that come start the count anew.
    """

    in_order = True
    shard = "live"
    is_plain = False
    block_rows = None

    def __init__(self, connector: Connector, retries: Retries | None = None) -> None:
        self.connector = connector
        self.retries = retries or RECONNECTS

    @property
    def tells_rows(self) -> bool:
        return self.connector.is_one_to_one

    def plan_blocks(self, seed: int | None, epoch: int, counts: RowCounts, ask: Ask, *, must_end: bool) -> Blocks:
        return OpenBlocks(self.connector.most_in_window)

    def blocks(self) -> Sequence[Block]:
        """There is no end of them.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.connector.name} is a live stream: it has no end. Call take(n) for the next n rows.")

    def versions(self) -> list[FileVersion]:
        return []

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        if not isinstance(block, HandedBlock):
            self.blocks()
            return
        yield from skip_rows(self.connector.decode(block.handed, block.path, on_bad), first_row)

    def describe(self) -> dict[str, Any]:
        return self.connector.describe()


@dataclass
class _Handed:
    """A window that was handed out.

    Attributes:
        n_rows: how many rows it has after all steps, if that is known.
    """

    index: int
    epoch: int
    entries: list[Entry]
    n_rows: int | None = None


class _Split(NamedTuple):
    """What was handed out, parted at a place: rows as they were received.

    Attributes:
        place: where to go on; the beginning of a window where possible.
        exact: how many of the rows after it make the first window, if that is to be made again, as it was in `epoch`.
    """

    place: tuple[int, int]
    before: list[Entry]
    after: list[Entry]
    exact: int = 0
    epoch: int = 0


class LiveShares:
    """Makes shares of the rows of a live source, as they arrive; knows the position after each row that was given.

    It lasts as long as its loader: a new epoch begins with the first row that the loop has not had.

    Guarantees: rows that were handed out and not given are handed out again in the next epoch; no more are held than
    open windows have, and the feed.

    Args:
        batch_rows: windows have a multiple of it, where more rows are there.
        skips: whether bad rows are left out.
    """

    def __init__(
        self, recipe: Recipe, batch_rows: int, rank: int, world: int, seed: int | None, *, skips: bool = False
    ) -> None:
        self._source: LiveSource = recipe.source
        self._rank = rank, world
        self._connector = self._source.connector.of_rank(rank, world, 1)
        self._batch_rows = batch_rows
        self._seed = seed or 0
        self._shuffled_rows = 0 if recipe.shuffle is None else recipe.shuffle.rows or 0
        self._first_row, self._end_row = _limits_of(recipe)
        keeps_count = recipe.packing is None and all(step.keeps_count for step in recipe.steps)
        self._is_one_to_one = keeps_count and not skips and self._source.tells_rows and not self._shuffled_rows
        self._positions: dict[str, Any] = {}  # before the first of `_handed`
        self._handed: deque[_Handed] = deque()
        self._index = self._row = 0
        self._exact = self._exact_epoch = 0  # rows of the next window, if it is one that was made before
        self._given = 0, 0
        self._workers = 0
        self._feed: LiveFeed | None = None
        self._keeper: Keeper | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handed": deque(), "_feed": None, "_keeper": None}

    # Epochs and states

    def begin(self, start: Mapping[str, Any], workers: int) -> dict[str, Any]:
        """Begin an epoch where `start` was saved; without that, with the first row that was not given.

        Returns:
            The start, with the place that windows are counted from.
        """
        if "live" in start:
            self.go_to(start)
        else:
            self._rewind()
        self._workers = workers
        self._connector = self._source.connector.of_rank(*self._rank, max(1, workers))
        return {**start, "place": list(self._given)}

    def go_to(self, start: Mapping[str, Any]) -> None:
        """Go to where a state was saved; what was received since is forgotten."""
        if "live" not in start:
            return
        self.close()
        live = start["live"]
        self._positions, self._row = dict(live["positions"]), live["row"]
        self._exact, self._exact_epoch = live["rows"], live["epoch"]
        self._given = tuple(start.get("place", (0, 0)))
        self._index = self._given[0]

    def _rewind(self) -> None:
        """Have all rows that were not given handed out again."""
        split = self._split(*self._given)
        if split.after and self._feed is not None:
            self._feed.put_back(split.after)
        self._fold(split.before)
        self._handed.clear()
        if split.exact:
            self._exact, self._exact_epoch = split.exact, split.epoch
        self._given, self._index, self._row = split.place, split.place[0], 0
        if self._feed is not None and not len(self._feed) and self._feed.has(1):
            self.close()  # it has ended: the next epoch connects anew

    def state_after(self, place: tuple[int, int] | None = None) -> dict[str, Any]:
        """What a state says of a place; without one, of what the loop has been given."""
        split = self._split(*(self._given if place is None else place))
        (index, row), exact, epoch = split.place, split.exact, split.epoch
        if self._exact and not self._handed:
            exact, epoch = self._exact, self._exact_epoch
        if exact and not self._connector.has_positions:  # what is left of a window that cannot be read again is lost
            (index, row), exact = (index + 1, 0), 0
        n_row = self._row - len(split.after)
        positions = _folded(self._from_start(), split.before)
        live = {"positions": positions, "row": n_row, "rows": exact, "epoch": epoch}
        return {"place": [index, row], "live": live}

    def given(self, index: int, row: int) -> None:
        """The loop has all rows before this one of a window."""
        self._given = index, row
        while self._handed and self._handed[0].index < index:
            self._fold(self._handed.popleft().entries)

    def note_rows(self, share: Share, n_rows: int) -> None:
        """A window has so many rows, after all steps."""
        for handed in self._handed:
            if handed.index == share.window.number:
                handed.n_rows = n_rows

    def _split(self, index: int, row: int) -> _Split:
        place, exact, epoch = (index, row), 0, 0
        before: list[Entry] = []
        after: list[Entry] = []
        for handed in self._handed:
            if handed.index != index:
                (before if handed.index < index else after).extend(handed.entries)
                continue
            n = self._n_consumed(handed, row)
            if n is None:
                n, exact, epoch = 0, len(handed.entries), handed.epoch
            elif n:
                place = index + 1, 0
            before += handed.entries[:n]
            after += handed.entries[n:]
        return _Split(place, before, after, exact, epoch)

    def _n_consumed(self, handed: _Handed, row: int) -> int | None:
        """How many rows, as they were received, the first `row` of a window are made of; None if nobody knows."""
        if not row:
            return 0
        if handed.n_rows is not None and row >= handed.n_rows:
            return len(handed.entries)
        return row if self._is_one_to_one else None

    def _from_start(self) -> dict[str, Any]:
        """The positions before the first window that is kept, also of partitions that have given nothing yet."""
        return self._positions if self._feed is None else {**self._feed.starts, **self._positions}

    def _fold(self, entries: list[Entry]) -> None:
        self._positions = _folded(self._positions, entries)

    def commit(self, live: Mapping[str, Any]) -> None:
        """Acknowledge what a state covers."""
        if live["positions"]:
            self._connector.commit(live["positions"])

    def close(self) -> None:
        """Close the connection; what was received and not given is gone."""
        self._positions = self._from_start()
        keeper, self._keeper, self._feed = self._keeper, None, None
        self._handed.clear()
        if keeper is not None:
            keeper.close()

    # Shares

    @property
    def is_ready(self) -> bool:
        """Whether the next share is at hand, or there is none."""
        return self._has_all or self._open().has(self._n_needed)

    def wait(self) -> None:
        """Wait until the next share is at hand, or there is none."""
        feed = self._open()  # which may be closed meanwhile, by another thread
        while not (self._has_all or feed.has(self._n_needed)):
            feed.wait(self._n_needed)
            self._tell(feed)

    def hand_out(self, epoch: int) -> Iterator[Share]:
        """The shares of an epoch; waits for rows where none has arrived."""
        while True:
            of_epoch = self._exact_epoch if self._exact else epoch
            entries = self._next()
            if not entries:
                return
            number, self._index = self._index, self._index + 1
            self._handed.append(_Handed(number, of_epoch, entries))
            first, self._row = self._row, self._row + len(entries)
            where = f"rows {first} to {self._row - 1} of {self._connector.name}"
            n_rows = len(entries) if self._source.tells_rows else None
            rows = tuple(row for row, _, _ in entries)
            block = HandedBlock(where, first, self._row, n_rows, handed=rows)
            key = derive_key(self._seed, of_epoch, f"window {number}")
            yield Share(Window(of_epoch, number, (block,), key, is_shuffled=bool(self._shuffled_rows)))

    def _next(self) -> list[Entry]:
        """The rows of the next window; none if that was the last."""
        self.wait()
        while self._row < self._first_row:
            skipped = self._open().take(self._first_row - self._row)
            self._row += len(skipped)
            self._fold(skipped)
            if not skipped:
                return []
            self.wait()
        if self._has_all:
            return []
        feed = self._open()
        self._tell(feed)
        n = self._n_needed if self._exact or self._shuffled_rows else self._n_at_once(len(feed))
        self._exact = 0
        return feed.take(n if self._end_row is None else min(n, self._end_row - self._row))

    def _n_at_once(self, n_here: int) -> int:
        """How many rows a window gets: a fair part for each worker, in whole batches if there are enough."""
        n = min(-(-n_here // max(1, self._workers)), self._connector.most_in_window)
        return int(n - n % self._batch_rows or max(1, min(n, n_here)))

    @property
    def _has_all(self) -> bool:
        return self._end_row is not None and self._row >= self._end_row

    @property
    def _n_needed(self) -> int:
        """How many rows the next window must have, unless there are no more."""
        n = self._exact or self._shuffled_rows or 1
        return n if self._end_row is None else max(1, min(n, self._end_row - self._row))

    def _open(self) -> LiveFeed:
        if self._feed is None:
            most = max(MOST_ROWS, 2 * self._n_needed)
            self._feed = LiveFeed(self._connector, self._positions, self._source.retries, most)
            self._keeper = Keeper(self, self._feed.end)
            self._feed.start()
        return self._feed

    def _tell(self, feed: LiveFeed) -> None:
        news, feed.news = feed.news, []
        for text in news:
            warn_user(text)


def _folded(positions: Mapping[str, Any], entries: Iterable[Entry]) -> dict[str, Any]:
    """The positions after some more rows."""
    return {**positions, **{partition: position for _, partition, position in entries if position is not None}}


def _limits_of(recipe: Recipe) -> tuple[int, int | None]:
    """Which rows `skip` and `take` leave of an epoch."""
    first, end = 0, None
    for limit in recipe.limits:
        first += limit.skip
        if limit.take is not None:
            end = first + limit.take if end is None else min(end, first + limit.take)
    return first, end
