"""Deals windows to ranks: whole ones where there are many, the rows of each where there are few. Makes ranks even."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import NamedTuple, TypeAlias

from headrace.base.errors import StateError
from headrace.streams.windows import Share

FEWEST_PER_RANK = 8  # windows that a rank has for itself; if there are fewer, all ranks read all of them
_MOST_APART = 10**6  # windows between the ranks whose states are put together


class Item(NamedTuple):
    """A window, or a part of its rows; see `Share`.

    Attributes:
        place: of the window in the epoch.
    """

    place: int
    first: int = 0
    step: int = 1
    skip: int = 0


class Pool(NamedTuple):
    """What all ranks together have left of an epoch.

    Attributes:
        left: what comes first: windows of which some rows were given already, or that lie before others that were.
        frontier: the place of the first window of those that nobody has touched.
    """

    left: tuple[Item, ...] = ()
    frontier: int = 0

    def item(self, position: int) -> Item:
        n_left = len(self.left)
        return self.left[position] if position < n_left else Item(self.frontier + position - n_left)

    def n_items(self, n_windows: int | None) -> int | None:
        """How many there are, if the epoch has so many windows."""
        return None if n_windows is None else len(self.left) + max(0, n_windows - self.frontier)


class Deal:
    """What one rank gets of a pool.

    Guarantees: what all ranks get is the pool, each row once. Of n windows, each rank gets n // world whole ones; of
    the rest, and of all if that is less than eight, it gets every `world`-th row.

    Args:
        n_items: in the pool; None if nobody knows, or there is no end.
        splits_begun: whether an item of which some rows were given can be dealt by rows, too. (Tokens cannot.)
    """

    def __init__(self, pool: Pool, n_items: int | None, rank: int, world: int, *, splits_begun: bool = True) -> None:
        self._pool = pool
        self._rank = rank
        self._world = world
        self._splits_begun = splits_begun
        self._n_whole: int | None = None if n_items is None else n_items // world
        if self._n_whole is not None and self._n_whole < FEWEST_PER_RANK and world > 1:
            self._n_whole = 0
        self._shared: list[tuple[int, Item]] = []
        if n_items is not None and self._n_whole is not None:
            rest = range(self._n_whole * world, n_items)
            self._shared = [(i, part) for i in rest if (part := self._part(pool.item(i), i)) is not None]

    @property
    def n_items(self) -> int | None:
        return None if self._n_whole is None else self._n_whole + len(self._shared)

    def __getitem__(self, index: int) -> tuple[int, Item]:
        """The position in the pool, and what this rank gets of it.

        Raises:
            IndexError: there is no more.
        """
        if self._n_whole is None or index < self._n_whole:
            position = index * self._world + self._rank
            return position, self._pool.item(position)
        return self._shared[index - self._n_whole]

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        for index in count():
            try:
                yield self[index]
            except IndexError:
                return

    def _part(self, item: Item, position: int) -> Item | None:
        place, first, step, skip = item
        if skip and not self._splits_begun:
            return item if position % self._world == self._rank else None
        # Who begins goes round, too: else the first rank had the only row of every window.
        turn = (self._rank - place) % self._world
        return Item(place, first + (skip + turn) * step, step * self._world)


def left_over(pool: Pool, deals: Sequence[Deal], reached: Sequence[tuple[int, int]]) -> Pool:
    """What is left of a pool, when each rank has come to an index of its deal, and to a row of that item.

    Raises:
        StateError: ranks of one training are never that far apart.
    """
    frontier = 0
    for deal, (index, row) in zip(deals, reached, strict=True):
        try:
            position = deal[index][0] if row else deal[index - 1][0] if index else -1
        except IndexError:  # it has had all of its own
            position = _last_position(deal)
        frontier = max(frontier, position + 1)
    behind = min(index for index, _ in reached) * len(deals)
    if frontier - behind > _MOST_APART:
        raise StateError(
            f"The states are damaged, or not of one training: one rank has read {frontier:,} windows of the stream's, "
            f"another has come to number {behind:,} only."
        )
    left: list[Item] = []
    for deal, (index, row) in zip(deals, reached, strict=True):
        left += _rest_of(deal, index, row, frontier)
    untouched = pool.frontier + max(0, frontier - len(pool.left))
    return Pool((*sorted(left), *pool.left[frontier:]), untouched)


def _last_position(deal: Deal) -> int:
    n = deal.n_items
    return -1 if not n else deal[n - 1][0]


def _rest_of(deal: Deal, index: int, row: int, frontier: int) -> Iterator[Item]:
    while True:
        try:
            position, item = deal[index]
        except IndexError:
            return
        if position >= frontier:
            return
        yield item._replace(skip=item.skip + row)
        index, row = index + 1, 0


Count: TypeAlias = Callable[[Sequence[Share]], list[int]]
"""How many rows each share has."""

OnDropped: TypeAlias = Callable[[int, int], None]
"""Hears how many rows a rank leaves out, at least, and how many it gives."""

_AT_ONCE = 4  # shares of each rank that are counted together


def drop_surplus(
    of_ranks: Sequence[Iterable[Share]], rank: int, count: Count, tell: OnDropped | None = None
) -> Iterator[Share]:
    """The shares of a rank, without the rows that another rank has not as many of.

    Counts the shares of all ranks as it goes on, and not before.

    Args:
        tell: hears at the end what is left out.
    """
    shares = [iter(one) for one in of_ranks]
    totals = [0] * len(shares)
    ended: set[int] = set()
    own: deque[tuple[Share, int]] = deque()
    n_given = 0
    while True:
        for number, some in enumerate(shares):
            counted = _count_next(some, count)
            totals[number] += sum(n_rows for _, n_rows in counted)
            if number == rank:
                own.extend(counted)
            if len(counted) < _AT_ONCE:
                ended.add(number)
        while own and n_given + own[0][1] <= min(totals):
            share, n_rows = own.popleft()
            n_given += n_rows
            yield share
        if ended and min(totals) == min(totals[number] for number in ended):
            yield from _cut(own, min(totals) - n_given)
            if tell is not None:
                tell(n_given + sum(n_rows for _, n_rows in own) - min(totals), min(totals))
            return


def fill_up(
    of_ranks: Sequence[Iterable[Share]],
    rank: int,
    all_shares: Callable[[], Iterable[Share]],
    count: Count,
    multiple: int,
) -> Iterator[Share]:
    """The shares of a rank, and then the beginning of the epoch again, until it has as many rows as any other.

    Args:
        all_shares: all windows of the epoch, from its beginning.
        multiple: that the number of rows must be, too: those of a batch, to fill the last one.
    """
    yield from of_ranks[rank]
    totals = [sum(count(list(shares))) for shares in of_ranks]
    missing = -(-max(totals) // multiple) * multiple - totals[rank]
    while missing > 0:
        for share in all_shares():
            [n_rows] = count([share])
            yield from _cut([(share._replace(is_again=True), n_rows)], missing)
            missing -= n_rows
            if missing <= 0:
                return


def _count_next(shares: Iterator[Share], count: Count) -> list[tuple[Share, int]]:
    some = list(islice(shares, _AT_ONCE))
    return list(zip(some, count(some), strict=True))


def _cut(counted: Iterable[tuple[Share, int]], n_rows: int) -> Iterator[Share]:
    """The first `n_rows` rows of shares of known numbers."""
    for share, n in counted:
        if n_rows <= 0:
            return
        yield share if n <= n_rows else share._replace(most=n_rows)
        n_rows -= n
