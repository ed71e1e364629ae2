"""Whole sequences put side by side into rows of one length, some hundred of them at a time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from headrace.sources.chunks import ColumnChunk
from headrace.sources.source import Chunk
from headrace.streams.steps import OnBadRow
from headrace.streams.tokens import (
    POSITIONS,
    SEGMENTS,
    TOKENS,
    join_fields,
    join_tokens,
    refuse_others,
    sequence_length,
)

Fit: TypeAlias = Literal["first", "best"]
FITS = ("first", "best")


class Fitted(NamedTuple):
    """Where a piece of a sequence goes.

    Attributes:
        start: of the piece in its sequence.
        row, column: where it begins.
        segment: its number in the row, from 1 on.
    """

    sequence: int
    start: int
    size: int
    row: int
    column: int
    segment: int


def fit_sequences(sizes: Sequence[int], length: int, fit: Fit) -> list[Fitted]:
    """Where sequences of these sizes go in rows of `length`: the longest first, each into a row that has room for it.

    Guarantees: each token has one place; a sequence is cut only if it is longer than a row. Rows are in the order of
    the first sequence of each, and so are the sequences of a row: the order of the data is kept as far as it can be.

    Args:
        fit: "first" takes the first row that has room, "best" the one that is fullest then.
    """
    pieces = [(i, start, min(size - start, length)) for i, size in enumerate(sizes) for start in range(0, size, length)]
    order = sorted(range(len(pieces)), key=lambda number: -pieces[number][2])
    place = _best_rows if fit == "best" else _first_rows
    rows: dict[int, list[int]] = {}
    for number, row in zip(order, place([pieces[number][2] for number in order], length), strict=True):
        rows.setdefault(row, []).append(number)
    fitted = []
    for row, numbers in enumerate(sorted(map(sorted, rows.values()))):
        column = 0
        for segment, number in enumerate(numbers, 1):
            fitted.append(Fitted(*pieces[number], row, column, segment))
            column += pieces[number][2]
    return fitted


def _first_rows(sizes: Sequence[int], length: int) -> list[int]:
    room = np.full(len(sizes), length, np.int64)
    rows = []
    for size in sizes:
        row = int(np.argmax(room >= size))
        room[row] -= size
        rows.append(row)
    return rows


def _best_rows(sizes: Sequence[int], length: int) -> list[int]:
    begun: list[tuple[int, int]] = []  # the room of each row, and its number; the fullest first
    rows, n_rows = [], 0
    for size in sizes:
        place = bisect_left(begun, (size, -1))
        if place < len(begun):
            room, row = begun.pop(place)
        else:
            room, row, n_rows = length, n_rows, n_rows + 1
        insort(begun, (room - size, row))
        rows.append(row)
    return rows


@dataclass(frozen=True)
class PackFit:
    """Packs `size` sequences at a time into rows, with the number of the sequence and the position of each token.

    Attributes:
        padding_value: what is left of a row is filled with; segments and positions are 0 there.
    """

    length: int
    fit: Fit
    size: int
    padding_value: Any = 0
    keeps_count = False
    is_by_row = False

    @property
    def signature(self) -> str:
        return f"PackFit {self.length} {self.fit} {self.size}"

    def apply(self, rows: Chunk, on_bad: OnBadRow) -> Chunk:
        parts = []
        for start in range(0, len(rows), self.size):
            lot = list(rows.slice(start, min(start + self.size, len(rows))).rows())
            parts.append(self._pack(lot, start, on_bad))
        return ColumnChunk.joined([part for part in parts if part])

    def _pack(self, rows: list[Any], first: int, on_bad: OnBadRow) -> dict[str, Any]:
        good = []
        for index, row in enumerate(rows):
            try:
                if join_fields([row]) is None:
                    refuse_others([row])
                good.append(row)
            except (TypeError, ValueError) as error:
                on_bad(first + index, row, error)
        if not any(map(sequence_length, good)):
            return {}
        fields = join_fields(good) or {TOKENS: join_tokens(good).rows()}
        lengths = [sequence_length(row) for row in good]
        fitted = np.array(fit_sequences(lengths, self.length, self.fit), np.int64).reshape(-1, 6)
        return self._fill(fields, np.cumsum([0, *lengths]), fitted)

    def _fill(self, fields: dict[Any, Any], firsts: Any, fitted: Any) -> dict[str, Any]:
        sequence, start, size, row, column, segment = fitted.T
        shape = (int(row.max()) + 1, self.length)
        places = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)  # in each piece
        sources = np.repeat(firsts[sequence] + start, size) + places
        targets = np.repeat(row * self.length + column, size) + places
        made: dict[str, Any] = {}
        for name, column_values in fields.items():
            values = np.asarray(column_values)
            if values.dtype.kind not in "biufc":
                raise TypeError(f"pack(fit=...) needs tokens that are numbers, got {values.dtype} in {name!r}.")
            array = np.full((shape[0] * self.length, *values.shape[1:]), self.padding_value, values.dtype)
            array[targets] = values[sources]
            made[name] = array.reshape(*shape, *values.shape[1:])
        for name, numbers in ((SEGMENTS, np.repeat(segment, size)), (POSITIONS, places)):
            flat = np.zeros(shape[0] * self.length, np.int64)
            flat[targets] = numbers
            made[name] = flat.reshape(shape)
        return made
