"""The shares of one rank in one epoch: what its loop asks the workers to read, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from headrace.order.shard import Shard
from headrace.streams.counts import RowCounts
from headrace.streams.live import LiveShares, LiveSource
from headrace.streams.messages import Counted, CountRows
from headrace.streams.rank_split import Deal, Item, OnDropped, Pool, drop_surplus, fill_up
from headrace.streams.reading import count_in
from headrace.streams.recipe import Ask, Recipe
from headrace.streams.user_sources import Dispatcher, IterableSource
from headrace.streams.windows import EpochWindows, Share


@dataclass(frozen=True)
class Loading:
    """How a stream is loaded.

    Attributes:
        batch_rows: rows in a batch; or tokens, if rows are packed.
        seed: of the loader; None for the stream's own.
        skips: whether bad rows are left out.
    """

    recipe: Recipe
    batch_rows: int
    drop_last: bool
    seed: int | None
    shard: Shard
    skips: bool = False

    @property
    def tells_rows(self) -> bool:
        """Whether windows have as many rows as the source says, and reading them tells nothing else."""
        return not self.skips and self.recipe.tells_rows

    def open_live(self) -> LiveShares | None:
        """What makes the shares of a live source; None for any other."""
        if not isinstance(self.recipe.source, LiveSource):
            return None
        rank, world = self.shard.rank, self.shard.world
        return LiveShares(self.recipe, self.batch_rows, rank, world, self.seed, skips=self.skips)


class UnknownCountError(Exception):
    """Nobody knows how many rows a window has, and it must not be read now."""


def refuse_to_count(requests: Sequence[CountRows]) -> list[Counted]:
    """Does not read anything.

    Raises:
        UnknownCountError: always.
    """
    raise UnknownCountError


class RankWindows:
    """The shares of a rank, from an index on, to be gone through once.

    Guarantees: pure, but for the counting of rows, which is put off until it must be done: so it can be the workers'
    job, once they are there.

    Attributes:
        ask: who counts rows.
        dispatcher: who sends the rows of an iterable along, if that is wanted.
        on_dropped: hears how many rows are left out to make ranks even.

    Args:
        pool: what there is to be dealt; None for the whole epoch.
        live: makes the shares, if the source is a live one.
    """

    def __init__(
        self,
        loading: Loading,
        counts: RowCounts,
        epoch: int,
        pool: Pool | None = None,
        index: int = 0,
        live: LiveShares | None = None,
    ) -> None:
        self._asked = _Asked(count_in(loading.recipe, loading.seed, skips=loading.skips))
        self.on_dropped: OnDropped | None = None
        self._loading = loading
        self._counts = counts
        self._epoch = epoch
        self._pool = pool or Pool()
        self._windows: EpochWindows | None = None
        source = loading.recipe.source
        is_handed = isinstance(source, IterableSource) and source.shard == "dispatch"
        self.dispatcher = Dispatcher(source, index) if is_handed else None
        self._index = index
        self.live = live

    @property
    def is_ready(self) -> bool:
        """Whether the next share can be had without waiting for a live source."""
        return self.live is None or self.live.is_ready

    def wait(self) -> None:
        """Wait for a live source."""
        if self.live is not None:
            self.live.wait()

    def __iter__(self) -> Iterator[Share]:
        if self.live is not None:
            yield from self.live.hand_out(self._epoch)
            return
        shard = self._loading.shard
        if shard.world == 1 or shard.even == "allow":
            shares = self.dealt(shard.rank, self._index)
        else:
            shares = islice(self.even(shard.rank), self._index, None)
        yield from shares if self.dispatcher is None else self.dispatcher.hand_out(shares)

    @property
    def ask(self) -> Ask:
        return self._asked.ask

    @ask.setter
    def ask(self, ask: Ask) -> None:
        self._asked.ask = ask

    @property
    def windows(self) -> EpochWindows:
        """All windows of the epoch."""
        if self._windows is None:
            shard = self._loading.shard
            self._windows = self._loading.recipe.epoch_windows(
                self._loading.seed,
                self._epoch,
                self._counts,
                self._asked,
                must_end=shard.world > 1 and shard.even != "allow",
            )
        return self._windows

    def first_position(self, number: int) -> int:
        """Where block `number` of a mix begins."""
        loading = self._loading
        blocks = loading.recipe.source.plan_blocks(loading.seed, self._epoch, self._counts, self._asked, must_end=False)
        position: int = blocks.first_position(number)
        return position

    def deal(self, rank: int) -> Deal:
        """What a rank gets, before ranks are made even."""
        n_items = self._pool.n_items(self.windows.n_windows)
        splits = self._loading.recipe.packing is None and self._loading.recipe.dealt_together == 1
        return Deal(self._pool, n_items, rank, self._loading.shard.world, splits_begun=splits)

    def dealt(self, rank: int, index: int = 0) -> Iterator[Share]:
        """The shares of a rank, before ranks are made even."""
        deal = self.deal(rank)
        for i in count(index):
            try:
                yield self.share_of(deal[i][1])
            except IndexError:
                return

    def even(self, rank: int) -> Iterator[Share]:
        """The shares of a rank, after ranks are made even."""
        shard = self._loading.shard
        if shard.world == 1 or shard.even == "allow":
            return self.dealt(rank)
        of_ranks = [_Again(self.dealt, other) for other in range(shard.world)]
        if shard.even == "drop":
            return drop_surplus(of_ranks, rank, self.count, self.on_dropped)
        multiple = self._loading.batch_rows if shard.even == "repeat" else 1
        return fill_up(of_ranks, rank, lambda: map(Share, self.windows), self.count, multiple)

    def most_empty(self) -> int | None:
        """After how many shares without rows there is no end of such; None if they end anyway."""
        return self.windows.most_empty

    def count(self, shares: Sequence[Share]) -> list[int]:
        """How many rows each share has; has them counted if it must."""
        return self._counts.count(shares, self._asked)

    def share_of(self, item: Item) -> Share:
        """Raises IndexError if there is no such window."""
        unit = self._loading.recipe.dealt_together if item.step > 1 else 1
        return Share(self.windows.window(item.place), item.first, item.step, item.skip, unit=unit)


class _Asked:
    """Whoever counts rows now. It is apart from the shares, which would be kept by their own windows otherwise."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def __call__(self, requests: Sequence[CountRows]) -> list[Counted]:
        return self.ask(requests)


class _Again:
    """An iterable of the shares of a rank, that can be gone through several times."""

    def __init__(self, dealt: Callable[[int], Iterator[Share]], rank: int) -> None:
        self._dealt = dealt
        self._rank = rank

    def __iter__(self) -> Iterator[Share]:
        return self._dealt(self._rank)
