"""Rows in memory: objects, columns, and several chunks as one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import InternalError, RecordError
from headrace.sources.chunks import ColumnChunk, JoinedChunk, ObjectChunk
from headrace.sources.source import Block
from headrace.streams.rows import every_nth, shuffle_rows
from headrace.streams.window_rows import ReadFacts, WindowRows
from headrace.streams.windows import Window


class Noting:
    """Chunks of two rows each, and how many of them were read."""

    def __init__(self, n_rows):
        self.n_rows = n_rows
        self.n_read = 0

    def __iter__(self):
        for start in range(0, self.n_rows, 2):
            self.n_read += 1
            yield columns_of(start, min(start + 2, self.n_rows))


DICTS = [{"n": i, "s": str(i)} for i in range(6)]


def columns_of(start, stop):
    return ColumnChunk({"n": np.arange(start, stop), "s": [str(i) for i in range(start, stop)]})


def as_lists(columns):
    return {name: list(column) for name, column in columns.items()}


@given(
    lengths=st.lists(st.integers(0, 5), max_size=6),
    kinds=st.lists(st.sampled_from(["objects", "columns"]), min_size=6, max_size=6),
    start=st.integers(0, 30),
    length=st.integers(0, 30),
)
def test_chunks_are_cut_as_one(lengths, kinds, start, length):
    chunks, rows = [], []
    for n, kind in zip(lengths, kinds, strict=False):
        made = columns_of(len(rows), len(rows) + n)
        chunks.append(made if kind == "columns" else ObjectChunk(made.rows()))
        rows += [{"n": i, "s": str(i)} for i in range(len(rows), len(rows) + n)]
    joined = JoinedChunk(chunks)
    start, stop = min(start, len(rows)), min(start + length, len(rows))
    part = joined.slice(start, stop)
    assert len(joined) == len(rows)
    assert joined.rows() == rows
    assert len(part) == stop - start
    assert part.rows() == rows[start:stop]
    if start < stop:
        assert as_lists(part.columns()) == {"n": list(range(start, stop)), "s": [str(i) for i in range(start, stop)]}


def test_columns_of_dicts():
    columns = ObjectChunk(DICTS).columns()
    assert isinstance(columns["n"], np.ndarray)
    assert columns["n"].tolist() == [0, 1, 2, 3, 4, 5]
    assert columns["s"] == ["0", "1", "2", "3", "4", "5"]


def test_columns_of_anything_else_are_one():
    assert ObjectChunk(["a", "b"]).columns() == {"value": ["a", "b"]}


def test_columns_of_arrays_are_stacked_if_their_shapes_agree():
    same = ObjectChunk([{"x": np.zeros(2)}, {"x": np.ones(2)}]).columns()["x"]
    other = ObjectChunk([{"x": np.zeros(2)}, {"x": np.ones(3)}]).columns()["x"]
    assert same.tolist() == [[0, 0], [1, 1]]
    assert [x.tolist() for x in other] == [[0, 0], [1, 1, 1]]


def test_columns_of_one_length_only():
    with pytest.raises(ValueError, match="same length"):
        ColumnChunk({"a": [1, 2], "b": np.arange(3)})


def test_a_column_that_some_chunks_do_not_have_is_null_there():
    joined = ColumnChunk.joined([{"a": np.arange(2)}, {"a": np.arange(1), "b": ["x"]}])
    assert as_lists(joined.columns()) == {"a": [0, 1, 0], "b": [None, None, "x"]}


def test_numbers_of_rows_are_pythons_own():
    assert [type(row["n"]) for row in columns_of(0, 2).rows()] == [int, int]


@pytest.mark.parametrize("rows", [ObjectChunk(DICTS), columns_of(0, 6)], ids=["objects", "columns"])
@pytest.mark.parametrize("as_columns", [False, True])
def test_rows_at_places(rows, as_columns):
    places = np.array([4, 0, 3])
    assert shuffle_rows(rows, places, as_columns=as_columns).rows() == [DICTS[4], DICTS[0], DICTS[3]]
    shares = [every_nth(rows, rank, 4, as_columns=as_columns).rows() for rank in range(4)]
    assert shares == [[DICTS[0], DICTS[4]], [DICTS[1], DICTS[5]], [DICTS[2]], [DICTS[3]]]
    assert every_nth(rows, 0, 1, as_columns=as_columns) is rows


def coming(pieces, n_rows=None, **options):
    """The rows of a window, of these pieces."""
    return WindowRows(Window(0, 0, (Block("here", None, None),), 0), ReadFacts(), iter(pieces), n_rows, **options)


@pytest.mark.parametrize("is_told", [True, False])
def test_rows_are_read_as_far_as_they_are_wanted_and_then_forgotten(is_told):
    chunks = Noting(9)
    rows = coming(chunks, 9 if is_told else None)
    assert (len(rows), chunks.n_read) == (9 if is_told else 0, 0)
    assert (rows.slice(1, 3).columns()["s"], chunks.n_read, rows.first) == (["1", "2"], 2, 0)
    assert (rows.slice(3, 4).columns()["s"], chunks.n_read, rows.first) == (["3"], 2, 2)
    assert (rows.slice(7, 9).columns()["s"], chunks.n_read, rows.first) == (["7", "8"], 5, 6)
    assert len(rows.slice(9, 9)) == 0
    with pytest.raises(InternalError, match="forgotten"):
        rows.slice(0, 2)


def test_rows_that_are_kept_can_be_had_again():
    rows = coming(Noting(9), keeps=True)
    for start, stop in ((5, 8), (0, 3), (2, 9), (0, 9)):
        assert rows.slice(start, stop).rows() == columns_of(start, stop).rows()


def test_all_rows_that_come():
    assert coming(Noting(5), 5).whole().rows() == columns_of(0, 5).rows()
    assert coming(Noting(5)).whole().columns()["s"] == ["0", "1", "2", "3", "4"]


def test_rows_are_read_piece_by_piece():
    chunks = Noting(5)
    rows = coming(chunks)
    seen = []
    while not rows.is_read:
        rows.read_on(seconds=0)
        seen.append((rows.end, chunks.n_read, rows.is_read))
    assert seen == [(2, 1, False), (4, 2, False), (5, 3, False), (5, 3, True)]
    assert [len(chunk) for chunk in rows.held] == [2, 2, 1]
    rows.taken()
    assert (rows.first, rows.end, list(rows.held)) == (5, 5, [])


@pytest.mark.parametrize(("n_rows", "problem"), [(8, "has more"), (10, "has 9")])
def test_other_rows_than_should_come(n_rows, problem):
    rows = coming(Noting(9), n_rows)
    rows.slice(0, 3)
    with pytest.raises(RecordError, match=f"here must have {n_rows} rows, but {problem}"):
        rows.slice(3, n_rows)


def test_tensors_beside_others_stay_arrays():
    tensors, others = np.ones((2, 3), np.float32), [None, np.zeros(3, np.float32)]
    joined = ColumnChunk.joined([{"x": tensors}, {"x": others}]).columns()["x"]
    assert [None if row is None else (row.dtype, row.tolist()) for row in joined] == [
        (np.float32, [1.0] * 3),
        (np.float32, [1.0] * 3),
        None,
        (np.float32, [0.0] * 3),
    ]
    assert ColumnChunk.joined([{"x": np.arange(2)}, {"x": [None]}]).columns() == {"x": [0, 1, None]}
