"""Columns that the loop makes batches of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.base.later_column import made
from headrace.streams.rows import ArrayRows, own_columns


class ColumnParts:
    """Columns of many rows, in parts as they were read, of which batches are made as they are taken.

    To send them takes no time for each batch; and the memory of the batch before, which is still in the processor's
    cache, can be used again.

    Guarantees: in the order of the rows; nobody else sees the arrays of a batch.

    Args:
        parts: columns, some of which may not be made yet, and their number of rows.
        size: rows in a batch.
        is_own: whether nobody else sees the arrays: they were sent here.
    """

    def __init__(self, parts: list[tuple[dict[str, Any], int]], size: int, *, is_own: bool = False) -> None:
        self._parts = parts
        self._size = size
        self._is_own = is_own

    def __reduce__(self) -> Any:
        return _unpickle, (self._parts, self._size)

    def batches(self, finish: Callable[[dict[str, Any]], Any]) -> Iterator[Any]:
        """What `finish` makes of the columns of each batch."""
        size = self._size
        begun: list[dict[str, Any]] = []  # of a batch that goes on in the next part
        missing = 0
        for columns, n_rows in self._parts:
            first = min(missing, n_rows)
            if first:
                begun.append(self._cut(columns, 0, first))
                missing -= first
                if missing:
                    continue
                yield finish(ArrayRows.joined(begun).columns())
            last = n_rows - (n_rows - first) % size
            for start in range(first, last, size):
                yield finish(self._cut(columns, start, start + size))
            if last < n_rows:
                begun, missing = [self._cut(columns, last, n_rows)], size - (n_rows - last)

    def _cut(self, columns: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
        rows = slice(start, stop)
        cut = {name: made(column[rows]) for name, column in columns.items()}
        return own_columns(cut, is_own=self._is_own)


def _unpickle(parts: list[tuple[dict[str, Any], int]], size: int) -> ColumnParts:
    return ColumnParts(parts, size, is_own=True)
