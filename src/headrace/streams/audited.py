"""What an audit is told of a stream: which rows came, and which should have, by window and row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from headrace.base.indices import Indices
from headrace.streams.messages import RowSpan
from headrace.streams.rank_windows import Loading, RankWindows
from headrace.streams.reading import lengths_in
from headrace.streams.windows import PastTheEndError, Share, Window

_ROW_BITS = 34  # of a key; the others are the window's number
_MOST_KEPT = 64  # windows whose sequences are known


class RowKeys:
    """Gives each row (or token) of an epoch a number that no other has, whichever rank gives it.

    Where the sequences of a window are dealt to several ranks, which token of the window a rank's n-th one is depends
    on their lengths: so such a window is read once more.
    """

    def __init__(self, loading: Loading) -> None:
        self._packs = loading.recipe.packing is not None
        self._lengths = partial(lengths_in, loading.recipe, loading.seed, skips=loading.skips)
        self._starts: dict[tuple[int, int], Indices] = {}  # by the window's number and stretch

    def of(self, span: RowSpan) -> Indices:
        """Those of a span."""
        share, start, stop, base = span
        rows = share.skip + base + np.arange(start, stop, dtype=np.int64)
        if not self._packs:
            rows = share.rows_at(rows)
        elif share.step > 1:
            rows = self._tokens(share, rows)
        rows += share.window.number << _ROW_BITS
        return rows

    def _tokens(self, share: Share, tokens: Indices) -> Indices:
        """Which tokens of the window those of a share are."""
        starts = self._starts_in(share.window)
        own = slice(share.first, None, share.step)
        own_starts, own_lengths = starts[:-1][own], np.diff(starts)[own]
        ends = np.cumsum(own_lengths)
        sequence = np.searchsorted(ends, tokens, side="right")
        found: Indices = own_starts[sequence] + tokens - (ends - own_lengths)[sequence]
        return found

    def _starts_in(self, window: Window) -> Indices:
        name = window.number, window.stretch
        if name not in self._starts:
            while len(self._starts) >= _MOST_KEPT:
                del self._starts[next(iter(self._starts))]
            self._starts[name] = np.cumsum([0, *self._lengths()(window)], dtype=np.int64)
        return self._starts[name]


class ExpectedRows:
    """What all ranks together are to get in an epoch, as an audit wants to know it.

    Args:
        shares: knows the windows, what the ranks get of them, and who counts their rows.
        start: the state that the epoch was begun with; empty at its beginning.
    """

    is_guess = False

    def __init__(self, shares: RankWindows, loading: Loading, start: Mapping[str, Any]) -> None:
        self._shares = shares
        self._loading = loading
        self._keys = RowKeys(loading)
        self._goes_on = tuple(start.get("place", (0, 0))) != (0, 0)
        self._is_rest = "pool" in start  # whether some of the epoch was given by other ranks

    def whole(self) -> Iterator[Indices]:
        """All rows of all windows, without what is dropped, and again what comes again."""
        dropped: dict[int, list[Indices]] = {}
        for span in self._dropped():
            dropped.setdefault(span.share.window.number, []).append(self._keys.of(span))
        for span in self._spans(map(Share, self._shares.windows)):
            keys = self._keys.of(span)
            left_out = dropped.get(span.share.window.number)
            yield keys if left_out is None else np.setdiff1d(keys, np.concatenate(left_out), assume_unique=True)
        yield from (self._keys.of(span) for span in self._again())

    def rest(self) -> Iterator[Indices] | None:
        """What all ranks get from here on; None if that is not known on one of them."""
        if self._goes_on:
            return None
        if not self._is_rest:
            return self.whole()
        return (self._keys.of(span) for spans in self._given for span in spans)

    def n_dropped(self) -> int:
        return sum(span.stop - span.start for span in self._dropped())

    def n_doubled(self) -> int:
        return sum(span.stop - span.start for span in self._again())

    @cached_property
    def _given(self) -> list[list[RowSpan]]:
        """The rows that each rank gives."""
        dealt = [list(self._spans(self._shares.even(rank))) for rank in range(self._loading.shard.world)]
        return [list(_first_rows(spans, self._n_given(sum(span.stop for span in spans)))) for spans in dealt]

    def _n_given(self, n_rows: int) -> int:
        """How many of its rows a rank gives in batches."""
        packing = self._loading.recipe.packing
        if self._loading.drop_last:
            return n_rows - n_rows % self._loading.batch_rows
        return n_rows - n_rows % packing.length if packing is not None and packing.drops_rest else n_rows

    def _dropped(self) -> Iterator[RowSpan]:
        """The rows that are dealt to a rank, but not given."""
        for rank, spans in enumerate(self._given):
            n_given = sum(span.stop - span.start for span in spans if not span.share.is_again)
            for share, _, n_rows, _ in self._spans(self._shares.dealt(rank)):
                if n_rows > n_given:
                    yield RowSpan(share, n_given, n_rows)
                n_given = max(0, n_given - n_rows)

    def _again(self) -> Iterator[RowSpan]:
        return (span for spans in self._given for span in spans if span.share.is_again)

    def _spans(self, shares: Iterator[Share]) -> Iterator[RowSpan]:
        for share in shares:
            try:
                [n_rows] = self._shares.count([share])
            except PastTheEndError:  # an iterable does not tell before where it ends
                return
            yield RowSpan(share, 0, n_rows)


def _first_rows(spans: Sequence[RowSpan], n_rows: int) -> Iterator[RowSpan]:
    for span in spans:
        if n_rows <= 0:
            return
        yield span._replace(stop=min(span.stop, n_rows))
        n_rows -= span.stop
