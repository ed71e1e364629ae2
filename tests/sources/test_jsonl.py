"""JSON lines: each line a value, whatever the cuts; bad lines are told with their place."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import RecordError
from headrace.sources.options import FileOptions
from headrace.sources.text import JsonLinesSource
from tests.sources.reading import all_rows, check_first_rows, small_pieces

scalars = st.none() | st.booleans() | st.integers(-999, 2**64) | st.floats(allow_nan=False) | st.text(max_size=5)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=3), scalars, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("jsonl")


def write(folder, content):
    path = folder / "data.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@settings(deadline=None)
@given(
    st.lists(values, max_size=5),
    st.sampled_from(["\n", "\r\n", " \n", "\n\n", "\n \t\r\n"]),
    st.sampled_from(["utf-8", "utf-16"]),
    st.integers(1, 50),
    st.integers(1, 50),
)
def test_the_blocks_have_each_value_once(folder, rows, newline, encoding, block_bytes, piece_bytes):
    text = newline.join(json.dumps(row, ensure_ascii=False) for row in rows)
    options = FileOptions(block_bytes=block_bytes, encoding=encoding)
    source = JsonLinesSource(write(folder, text.encode(encoding)), options)
    with small_pieces(piece_bytes):
        assert all_rows(source) == rows
        check_first_rows(source, most=3)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["1", "[1", "2]", "1,2", "{}", '{"a":', "", " ", "nul", '"x"', "[" * 5]), max_size=9))
def test_bad_lines_are_left_out_alone(folder, lines):
    source = JsonLinesSource(write(folder, "\n".join(lines)), FileOptions(block_bytes=7))
    good, n_bad = [], 0
    for line in lines:
        try:
            good.extend([json.loads(line)] if line.strip() else [])
        except ValueError:
            n_bad += 1
    bad = []
    assert all_rows(source, bad) == good
    assert len(bad) == n_bad


def test_the_place_of_a_bad_line_is_told(tmp_path):
    path = write(tmp_path, b'1\n\n\xff\n{"a": 2}\r\n{"a":}\n3')
    bad = []
    assert all_rows(JsonLinesSource(path), bad) == [1, {"a": 2}, 3]
    places = [record.where.partition("line ")[2] for record in bad]
    assert places == ["3 of these (at byte 3)", "5 of these (at byte 15)"]
    assert [record.raw for record in bad] == [b"\xff\n", b'{"a":}\n']
    assert bad[1].error.startswith("JSONDecodeError: Expecting value")


def test_nobody_listens(tmp_path):
    with pytest.raises(RecordError, match=r"line 2 of these .*Expecting value"):
        all_rows(JsonLinesSource(write(tmp_path, "1\n?\n")))


def test_a_value_that_is_too_deep_is_bad(tmp_path):
    bad = []
    assert all_rows(JsonLinesSource(write(tmp_path, "[" * 200_000 + "\n1\n")), bad) == [1]
    assert bad[0].error.startswith("RecursionError")
    assert len(bad[0].raw) == 4096


def test_columns(tmp_path):
    source = JsonLinesSource(write(tmp_path, '{"a": 1, "b": "x"}\n{"a": 2}\n'))
    (chunk,) = source.read(source.blocks()[0])
    columns = chunk.columns()
    np.testing.assert_array_equal(columns["a"], [1, 2])
    assert columns["b"] == ["x", None]
    source = JsonLinesSource(write(tmp_path, '1\n"x"\n'))
    (chunk,) = source.read(source.blocks()[0])
    assert chunk.columns() == {"value": [1, "x"]}
    assert source.describe()["format"] == "jsonl"
