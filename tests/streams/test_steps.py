"""What is done to the rows of a window, and what becomes of rows at which it raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.rows import ArrayRows, ObjectRows
from headrace.streams.steps import Filter, FlatMap, Map, MapBatches, Pack


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
    assert step.apply(ObjectRows([1, 2, 3]), None).rows() == made
    with pytest.raises(ZeroDivisionError):
        step.apply(ObjectRows([1, 0, 2, 3]), None)
    bad = []
    assert step.apply(ObjectRows([1, 0, 2, 3]), lambda row, error: bad.append((row, type(error)))).rows() == made
    assert bad == [(0, ZeroDivisionError)]


def test_batches_of_a_window():
    rows = ArrayRows({"n": list(range(5))})
    assert MapBatches(lambda columns: {"n": columns["n"][:1]}, 2).apply(rows, None).rows() == [
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
    rows = ArrayRows({"n": list(range(5))})
    assert [row["n"] for row in step.apply(rows, lambda where, error: bad.append(where)).rows()] == [0, 1, 4]
    assert bad == ["rows 2 to 3 of the window"]
    with pytest.raises(ValueError, match="refused"):
        step.apply(rows, None)


@given(sequences=st.lists(st.lists(st.integers(), max_size=7), max_size=7), length=st.integers(1, 9))
def test_packing_loses_nothing(sequences, length):
    rows = Pack(length).apply(ObjectRows(sequences), None).rows()
    assert [token for row in rows for token in row] == [token for sequence in sequences for token in sequence]
    assert all(len(row) == length for row in rows[:-1])
    assert all(rows)
