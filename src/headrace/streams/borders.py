"""What to ask for of windows that come one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from headrace.streams.messages import CutBatches, SendColumns, SendRows
from headrace.streams.windows import Share


def equal_borders(first: int, stop: int, at_once: int) -> list[int]:
    """Where equal parts of at most `at_once` rows begin, and where the last one ends."""
    n, n_parts = stop - first, max(1, -(-(stop - first) // max(1, at_once)))
    return [first + n * i // n_parts for i in range(n_parts + 1)]


class Borders(Protocol):
    """Cuts windows, in their order."""

    def cut(self, share: Share, first: int, n_rows: int, at_once: int) -> Sequence[CutBatches | SendRows | SendColumns]:
        """What to ask for of the rows from `first` on, of `n_rows`, of about `at_once` rows at a time."""
        ...


class ColumnBorders:
    """Cuts windows anywhere, in equal parts: batches are cut later."""

    def cut(self, share: Share, first: int, n_rows: int, at_once: int) -> list[SendColumns]:
        borders = [first, n_rows] if share.window.is_given_whole else equal_borders(first, n_rows, at_once)
        return [SendColumns(share, start, stop, at_once, stop == n_rows) for start, stop in pairwise(borders)]


class BatchBorders:
    """Cuts windows where batches end.

    Args:
        size: rows in a batch.
        n_batches: how many come before the first window.
    """

    def __init__(self, size: int, n_batches: int) -> None:
        self._size = size
        self._n_batches = n_batches  # that are whole
        self._rest = 0  # rows that are left over of all windows before

    def cut(self, share: Share, first: int, n_rows: int, at_once: int) -> list[CutBatches | SendRows]:
        """What to ask for of the rows from `first` on, of `n_rows`.

        That is the rows that complete the batch before; all whole batches, of about `at_once` rows at a time; and what
        is left over.
        """
        size = self._size
        head = min(first + -self._rest % size, n_rows)
        tail = n_rows - (n_rows - head) % size
        requests: list[CutBatches | SendRows] = []
        if head > first:
            requests.append(SendRows(share, first, head))
        number = self._n_batches + (self._rest + head - first) // size
        step = max(1, at_once // size) * size
        for start in range(head, tail, step):
            requests.append(CutBatches(share, start, min(start + step, tail), size, number))
            number += step // size
        requests.append(SendRows(share, tail, n_rows, is_last=True))
        whole, self._rest = divmod(self._rest + n_rows - first, size)
        self._n_batches += whole
        return requests
