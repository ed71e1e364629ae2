"""Which rows of which files the batches of a stream are made of, by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.base.indices import Indices
from headrace.base.provenance import SampleOrigin
from headrace.order.permutation import Permutation
from headrace.sources.source import Block
from headrace.streams.counts import RowCounts
from headrace.streams.mixing import MixSource
from headrace.streams.rank_windows import RankWindows
from headrace.streams.recipe import Ask, Recipe
from headrace.streams.windows import Share, Window


def rows_after(shares: RankWindows, rank: int, place: Sequence[int], n_skipped: int, n: int) -> Iterator[Any]:
    """The next `n` rows of a rank, after `n_skipped` from a place on: shares, and ranges of their rows."""
    index, row = place
    for number, share in enumerate(shares.even(rank)):
        if number < index:
            continue
        [n_rows] = shares.count([share])
        start = row if number == index else 0
        passed = min(n_skipped, n_rows - start)
        n_skipped, start = n_skipped - passed, start + passed
        stop = min(n_rows, start + n)
        if stop > start and not n_skipped:
            yield share, range(start, stop)
            n -= stop - start
        if not n:
            return


class Origins:
    """Finds the origins of rows.

    Args:
        ask: counts rows of blocks, where only reading tells how many there are.
    """

    def __init__(self, recipe: Recipe, counts: RowCounts, ask: Ask) -> None:
        self._recipe = recipe
        self._counts = counts
        self._ask = ask
        self._firsts: dict[str, dict[Any, int] | None] = {}  # the numbers of the first rows of the blocks of a file

    def of_share(self, share: Share, rows: range) -> list[SampleOrigin]:
        """The origins of rows of a share: of each one, or of all of them together."""
        if self._recipe.packing is not None:
            return self._of_whole(share.window)
        numbers = share.first + (share.skip + np.asarray(rows, np.int64)) * share.step
        return self.of_window(share.window, numbers)

    def of_window(self, window: Window, rows: Indices) -> list[SampleOrigin]:
        """The origins of rows of a window, as they are after all steps."""
        if not all(step.keeps_count for step in self._recipe.steps):
            return self._of_whole(window)
        rows = rows + sum(cut.start for cut in window.cuts)
        if window.is_shuffled:
            [n_raw] = self._counts.count([Share(window._replace(cuts=()))], self._ask, 0)
            rows = Permutation(n_raw, window.key).at(rows)
        if isinstance(self._recipe.source, MixSource):
            return self._of_mix(window, rows)
        ends = self._ends(window.blocks)
        numbers = np.searchsorted(ends, rows, side="right")
        return [
            self._of_row(window.blocks[number], int(row - (ends[number - 1] if number else 0)))
            for number, row in zip(numbers.tolist(), rows.tolist(), strict=True)
        ]

    def _ends(self, blocks: Sequence[Block]) -> Indices:
        """How many rows blocks have, added up."""
        if len(blocks) == 1:
            return np.array([2**62], np.int64)
        alone = [Share(Window(0, 0, (block,), 0)) for block in blocks]
        return np.cumsum(self._counts.count(alone, self._ask, 0))

    def _of_row(self, block: Block, row: int) -> SampleOrigin:
        firsts = self._firsts_of(block.path)
        if firsts is None or block.start not in firsts:
            return SampleOrigin(source=block.path, row=row, block=block.where())
        return SampleOrigin(source=block.path, row=firsts[block.start] + row)

    def _firsts_of(self, path: str) -> dict[Any, int] | None:
        """Where the blocks of a file begin, in rows; None if not all are known to have a number of rows."""
        if path not in self._firsts:
            try:
                blocks = [block for block in self._recipe.source.blocks() if block.path == path]
            except TypeError:  # of a user's iterable, blocks are not listed
                blocks = []
            firsts: dict[Any, int] = {}
            n_rows = 0
            for number, block in enumerate(blocks):
                firsts[block.start] = n_rows
                if block.rows is None and number + 1 < len(blocks):
                    firsts = {blocks[0].start: 0}  # from the first one on, at least
                    break
                n_rows += block.rows or 0
            self._firsts[path] = firsts or None
        return self._firsts[path]

    def _of_mix(self, window: Window, rows: Indices) -> list[SampleOrigin]:
        found: list[SampleOrigin] = []
        ends = self._ends(window.blocks)
        for row, number in zip(rows.tolist(), np.searchsorted(ends, rows, side="right").tolist(), strict=True):
            mixed = window.blocks[number].start
            place = int(mixed.places()[row - (ends[number - 1] if number else 0)])
            piece_ends = np.cumsum([stop - start for _, _, start, stop in mixed.pieces])
            owner = int(np.searchsorted(piece_ends, place, side="right"))
            stream, part, start, _ = mixed.pieces[owner]
            place += start - (int(piece_ends[owner - 1]) if owner else 0)
            found += self._part(stream).of_window(part, np.array([place], np.int64))
        return found

    def _part(self, number: int) -> Origins:
        return Origins(self._recipe.source.recipes[number], self._counts.parts[number], self._ask)

    def _of_whole(self, window: Window) -> list[SampleOrigin]:
        """Of a window whose rows are not those of the source, one by one."""
        if isinstance(self._recipe.source, MixSource):
            pieces = [piece for block in window.blocks for piece in block.start.pieces if piece.stop > piece.start]
            return [one for piece in pieces for one in self._part(piece.stream)._of_whole(piece.window)]
        return [SampleOrigin(source=block.path, block=block.where()) for block in window.blocks]
