"""Batches that the loop makes of columns that were only read."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.lazy_column import LazyColumn
from headrace.streams.loop_batches import ColumnCutter, ColumnParts


class Words(LazyColumn):
    """Numbers that become words."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, rows):
        return Words(self.numbers[rows])

    def materialize(self):
        return [str(number) for number in self.numbers]


def parts_of(lengths):
    parts, start = [], 0
    for n in lengths:
        numbers = np.arange(start, start + n)
        parts.append(({"n": numbers, "w": Words(numbers.tolist()), "l": numbers.tolist()}, n))
        start += n
    return parts


def sent(parts):
    return pickle.loads(pickle.dumps(parts, 5))


@given(
    lengths=st.lists(st.integers(0, 9), max_size=8),
    size=st.integers(1, 12),
    borders=st.sets(st.integers(0, 8)),
    is_sent=st.booleans(),
)
def test_batches_are_cut_across_parts_and_messages(lengths, size, borders, is_sent):
    parts, cutter, batches = parts_of(lengths), ColumnCutter(size, dict), []
    borders = sorted({0, len(parts)} | {border for border in borders if border < len(parts)})
    for start, stop in itertools.pairwise(borders):
        columns = ColumnParts(parts[start:stop])
        batches += cutter.batches(sent(columns) if is_sent else columns)
    n_rows = sum(lengths)
    assert len(batches) == n_rows // size
    if n_rows % size:
        batches.append(cutter.rest())
    expected = [list(range(start, min(start + size, n_rows))) for start in range(0, n_rows, size)]
    assert [batch["n"].tolist() for batch in batches] == expected
    assert [batch["l"] for batch in batches] == expected
    assert [batch["w"] for batch in batches] == [[str(number) for number in batch] for batch in expected]


@pytest.mark.parametrize("is_sent", [False, True])
def test_nobody_else_sees_the_arrays_of_a_batch(is_sent):
    parts = parts_of([5, 3])
    parts[0][0]["n"].flags.writeable = False
    before = [part["n"].tolist() for part, _ in parts]
    columns = ColumnParts(parts)
    for number, batch in enumerate(ColumnCutter(2, dict).batches(sent(columns) if is_sent else columns)):
        assert batch["n"].tolist() == [2 * number, 2 * number + 1]
        batch["n"] += 100
    assert [part["n"].tolist() for part, _ in parts] == before


def test_batches_are_made_as_they_are_taken():
    finished = []
    batches = ColumnCutter(2, lambda columns: finished.append(columns["l"])).batches(ColumnParts(parts_of([6])))
    assert finished == []
    next(batches)
    assert finished == [[0, 1]]
