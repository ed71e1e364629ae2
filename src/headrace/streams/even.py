"""Gives every rank as many rows as the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from headrace.streams.windows import Share

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
