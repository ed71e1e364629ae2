"""What is done to the rows of a window, and what becomes of rows at which it raises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.chunks import ColumnChunk, JoinedChunk, ObjectChunk
from headrace.streams.steps import Filter, FlatMap, Map, MapBatches
from headrace.streams.tokens import Packing, join_tokens


def refuse_row(index, row, error):
    raise error


def inverse(n):
    return 12 // n


def up_to(n):
    yield from range(inverse(n))


@pytest.mark.parametrize(
    ("step", "made", "keeps_count"),
    [
        (Map(inverse), [12, 6, 4], True),
        (Filter(lambda n: inverse(n) > 5), [1, 2], False),
        (FlatMap(up_to), [*range(12), *range(6), *range(4)], False),
    ],
    ids=["map", "filter", "flat_map"],
)
def test_steps_of_rows(step, made, keeps_count):
    assert step.keeps_count is keeps_count
    assert step.is_by_row
    assert step.apply(ObjectChunk([1, 2, 3]), refuse_row).rows() == made
    with pytest.raises(ZeroDivisionError):
        step.apply(ObjectChunk([1, 0, 2, 3]), refuse_row)
    bad = []

    def note(index, row, error):
        bad.append((index, row, type(error)))

    assert step.apply(ObjectChunk([0, 1, 0, 2, 3, 0]), note).rows() == made
    assert bad == [(0, 0, ZeroDivisionError), (2, 0, ZeroDivisionError), (5, 0, ZeroDivisionError)]


@pytest.mark.parametrize("step", [Map, Filter, FlatMap])
def test_a_function_that_raises_stop_iteration_ends_nothing(step):
    def stop_at_2(n):
        if n == 2:
            raise StopIteration
        return [n]

    with pytest.raises(RuntimeError, match="StopIteration"):
        step(stop_at_2).apply(ObjectChunk([1, 2, 3]), refuse_row)
    bad = []
    rows = step(stop_at_2).apply(ObjectChunk([1, 2, 3]), lambda index, row, error: bad.append(row)).rows()
    assert len(rows) == 2
    assert bad == [2]


def test_batches_of_a_window():
    rows = ColumnChunk({"n": list(range(5))})
    assert MapBatches(lambda columns: {"n": columns["n"][:1]}, 2).apply(rows, refuse_row).rows() == [
        {"n": 0},
        {"n": 2},
        {"n": 4},
    ]


def test_a_batch_that_raises_is_left_out_as_a_whole():
    def refuse(columns):
        if 2 in columns["n"]:
            raise ValueError("2 is refused")
        return columns

    bad = []
    step = MapBatches(refuse, 2)
    rows = ColumnChunk({"n": list(range(5))})
    assert [row["n"] for row in step.apply(rows, lambda index, row, error: bad.append((index, row))).rows()] == [
        0,
        1,
        4,
    ]
    assert bad == [(2, {"n": [2, 3]})]
    with pytest.raises(ValueError, match="refused"):
        step.apply(rows, refuse_row)


@pytest.mark.parametrize("made", [[1, 2], None, 5, "ab"])
def test_a_batch_that_becomes_no_columns(made):
    step = MapBatches(lambda _: made, 2)
    rows = ColumnChunk({"n": list(range(3))})
    with pytest.raises(TypeError, match=r"map_batches\(\) must return a dict of columns, got "):
        step.apply(rows, refuse_row)
    bad = []
    assert step.apply(rows, lambda index, row, error: bad.append(index)).rows() == []
    assert bad == [0, 2]


@given(sequences=st.lists(st.lists(st.integers(), max_size=7), max_size=7), length=st.integers(1, 9))
def test_packing_loses_nothing(sequences, length):
    rows = Packing(length).rows(join_tokens(sequences))
    assert [token for row in rows for token in row] == [token for sequence in sequences for token in sequence]
    assert all(len(row) == length for row in rows[:-1])
    assert all(rows)


def test_arrays_are_packed_into_arrays():
    rows = Packing(3).rows(join_tokens([np.arange(4), np.arange(2)]))
    assert [row.tolist() for row in rows] == [[0, 1, 2], [3, 0, 1]]
    assert all(isinstance(row, np.ndarray) for row in rows)


def test_packing_goes_on_with_what_was_left_over():
    tokens, rest = Packing(3).split(ObjectChunk([1]), JoinedChunk([ObjectChunk([2, 3]), ObjectChunk([4])]))
    assert Packing(3).rows(tokens) == [[1, 2, 3]]
    assert rest.rows() == [4]
