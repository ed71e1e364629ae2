"""`take` and `skip`: which windows of an epoch are left, and which of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True)
class Limit:
    """Leaves out the first `skip` rows, and all after the next `take`.

    Attributes:
        stage: how many steps have been done to the rows before they are counted.
        take: None for all.
    """

    stage: int
    skip: int
    take: int | None


class Cut(NamedTuple):
    """Of a window, only the rows [start, stop) are left, after so many steps."""

    stage: int
    start: int
    stop: int


Cuts: TypeAlias = tuple[Cut, ...]
CountRows: TypeAlias = Callable[[int, int, Cuts], int]
"""The number of rows of a window, after so many steps, with these cuts."""


class PastTheEndError(Exception):
    """There is no such window: the data had ended before."""


def cut_windows(limits: tuple[Limit, ...], windows: Iterable[int], count_rows: CountRows) -> Iterator[tuple[int, Cuts]]:
    """The windows that have rows left, in their order, and their cuts.

    Counts only as far as it must, and only when asked: `take(100)` reads the first window, and not the last.
    """
    left: Iterator[tuple[int, Cuts]] = ((number, ()) for number in windows)
    for limit in limits:
        left = _cut(limit, left, count_rows)
    return left


def _cut(limit: Limit, windows: Iterator[tuple[int, Cuts]], count_rows: CountRows) -> Iterator[tuple[int, Cuts]]:
    end = None if limit.take is None else limit.skip + limit.take
    if end == limit.skip:
        return
    first = 0  # row of the window at hand
    for number, cuts in windows:
        if end is None and first >= limit.skip:
            yield number, cuts  # all of the rest; nobody need count it
            continue
        try:
            n_rows = count_rows(number, limit.stage, cuts)
        except PastTheEndError:
            return
        start, stop = max(0, limit.skip - first), n_rows if end is None else min(n_rows, end - first)
        if start < stop:
            is_whole = (start, stop) == (0, n_rows)
            yield number, cuts if is_whole else (*cuts, Cut(limit.stage, start, stop))
        first += n_rows
        if end is not None and first >= end:
            return
