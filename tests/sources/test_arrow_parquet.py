from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ChangedFileError, RecordError
from headrace.sources.options import FileOptions
from tests.sources.exactly_once import all_rows, check_exactly_once, check_other_processes, rows_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ds = pytest.importorskip("pyarrow.dataset")

from headrace.sources.arrow_files import Part, join_small  # noqa: E402 (needs pyarrow)
from headrace.sources.arrow_parquet import ParquetSource, cut_large  # noqa: E402

ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "x": st.floats(allow_nan=False) | st.none(),
        "text": st.text(max_size=5) | st.none(),
        "flag": st.booleans(),
    }
)
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("text", pa.string()), ("flag", pa.bool_())])


@pytest.fixture
def numbers(tmp_path):
    """A file of 1,000 rows in 10 row groups."""
    table = pa.table({"id": range(1000), "half": [i / 2 for i in range(1000)], "name": [f"n{i}" for i in range(1000)]})
    pq.write_table(table, tmp_path / "numbers.parquet", row_group_size=100)
    return str(tmp_path / "numbers.parquet"), table.to_pylist()


@given(
    files=st.lists(st.tuples(st.lists(ROWS, max_size=30), st.integers(1, 12)), min_size=1, max_size=3),
    block_bytes=st.sampled_from([1, 60, 300, 2000, 1 << 20]),
)
@settings(max_examples=60, deadline=None)
def test_every_row_comes_once_from_any_row_on(tmp_path_factory, files, block_bytes):
    folder = tmp_path_factory.mktemp("parquet")
    for number, (rows, row_group_size) in enumerate(files):
        table = pa.Table.from_pylist(rows, SCHEMA)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group_size)
    source = ParquetSource(str(folder), options=FileOptions(block_bytes=block_bytes))
    check_exactly_once(source, [row for rows, _ in files for row in rows])
    assert all(block.rows for block in source.blocks())


def test_small_row_groups_are_joined_and_large_ones_cut(numbers):
    path, expected = numbers
    whole = ParquetSource(path, options=FileOptions(block_bytes=1 << 30))
    assert len(whole.blocks()) == 1
    parts = ParquetSource(path, options=FileOptions(block_bytes=1))
    assert len(parts.blocks()) == 80
    assert all_rows(whole) == all_rows(parts) == expected


@given(
    sizes=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), max_size=20),
    block_bytes=st.integers(1, 700),
)
def test_cutting_and_joining_keeps_every_row(sizes, block_bytes):
    groups, start = [], 0
    for n_rows, n_bytes in sizes:
        groups.append(Part(start, start + n_rows, n_rows, n_bytes))
        start += n_rows
    parts = join_small((part for group in groups for part in cut_large(group, block_bytes)), block_bytes)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(start))
    assert all(part.n_rows == part.stop - part.start > 0 for part in parts)


def test_parts_of_a_row_group_can_be_read_in_any_order(numbers):
    path, expected = numbers
    source = ParquetSource(path, options=FileOptions(block_bytes=1))
    blocks = source.blocks()
    for i in (5, 6, 8, 7, 7, 0, 79, 40):
        assert rows_of(source, blocks[i]) == expected[blocks[i].start : blocks[i].stop]


def test_an_abandoned_block_does_not_disturb_the_next(numbers):
    path, expected = numbers
    source = ParquetSource(path, options=FileOptions(block_bytes=1))
    first, second = source.blocks()[:2]
    chunks = source.read(first)
    next(chunks)
    chunks.close()
    assert rows_of(source, second) == expected[second.start : second.stop]
    assert rows_of(source, first) == expected[first.start : first.stop]


def test_two_readers_at_once_do_not_share_a_position(numbers):
    path, expected = numbers
    source = ParquetSource(path, options=FileOptions(block_bytes=1))
    blocks = source.blocks()[:2]
    pairs = zip(*(source.read(block) for block in blocks), strict=True)
    first, second = next(pairs)
    assert [*first.rows(), *second.rows()] == expected[: blocks[1].stop]


def test_threads_decode_columns_unless_one_is_nearly_all(tmp_path, monkeypatch):
    table = pa.table({"a": range(1000), "b": range(1000), "data": [bytes([i % 256]) * (50 + i) for i in range(1000)]})
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=False, compression="none")
    asked = []
    plain = pq.ParquetFile.iter_batches

    def iter_batches(*args, **options):
        asked.append(options["use_threads"])
        return plain(*args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    for columns in (["a", "b"], ["a"], None):
        all_rows(ParquetSource(tmp_path / "x.parquet", columns=columns))
    assert asked == [True, False, False]


def test_only_the_columns_asked_for_come_in_the_order_asked_for(numbers):
    path, expected = numbers
    source = ParquetSource(path, columns=["name", "id"])
    assert all_rows(source) == [{"name": row["name"], "id": row["id"]} for row in expected]
    assert list(all_rows(source)[0]) == ["name", "id"]
    assert source.describe()["columns"] == {"name": "string", "id": "int64"}
    with pytest.raises(ValueError, match=r"got \['nome'\]"):
        ParquetSource(path, columns=["nome"]).blocks()
    with pytest.raises(TypeError, match=r"must be a list of names, got 'name': pass \['name'\]"):
        ParquetSource(path, columns="name")


def test_filters_leave_out_row_groups_and_rows(numbers):
    path, expected = numbers
    for filters in ([("id", ">=", 250), ("id", "<", 420)], (ds.field("id") >= 250) & (ds.field("id") < 420)):
        source = ParquetSource(path, columns=["name"], filters=filters, options=FileOptions(block_bytes=1))
        assert [(block.start, block.stop) for block in source.blocks()] == [(200, 300), (300, 400), (400, 500)]
        check_exactly_once(source, [{"name": row["name"]} for row in expected[250:420]])
        assert source.describe()["rows"] is None


def test_filters_that_statistics_cannot_decide_are_exact(numbers):
    path, expected = numbers
    source = ParquetSource(
        path, filters=[("name", "in", ["n5", "n995"]), ("half", ">", 3)], options=FileOptions(block_bytes=1 << 30)
    )
    check_exactly_once(source, [expected[995]])
    assert all_rows(ParquetSource(path, filters=[("id", "<", 0)])) == []


def test_files_with_other_columns_are_refused_by_name(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"b": ["y"], "a": [1.5]}), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"'a' is int64 in '.*0.parquet' and double in '.*1.parquet'"):
        ParquetSource(str(tmp_path)).blocks()
    assert all_rows(ParquetSource(str(tmp_path), columns=["b"])) == [{"b": "x"}, {"b": "y"}]
    pq.write_table(pa.table({"a": [2], "b": ["y"], "c": [0]}), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"\['c'\] of '.*1.parquet' are not in '.*0.parquet'"):
        ParquetSource(str(tmp_path)).blocks()
    pq.write_table(pa.table({"b": ["y"]}), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"'a' is int64 in '.*0.parquet' and missing in '.*1.parquet'"):
        ParquetSource(str(tmp_path)).blocks()


def test_the_order_of_columns_is_that_of_the_first_file(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"b": ["y"], "a": [2]}), tmp_path / "1.parquet")
    assert [list(row.items()) for row in all_rows(ParquetSource(str(tmp_path)))] == [
        [("a", 1), ("b", "x")],
        [("a", 2), ("b", "y")],
    ]


def test_a_file_that_changed_since_it_was_listed_is_noticed(numbers):
    path, _ = numbers
    source = ParquetSource(path)
    block = source.blocks()[0]
    os.utime(path, ns=(0, 0))
    with pytest.raises(ChangedFileError, match=r"numbers\.parquet"):
        rows_of(source, block)


def test_it_works_in_other_processes(numbers):
    check_other_processes(ParquetSource(numbers[0], options=FileOptions(block_bytes=1)))


def test_remote_files(numbers):
    fsspec = pytest.importorskip("fsspec")
    path, expected = numbers
    with open(path, "rb") as local:
        fsspec.filesystem("memory").pipe("/tables/numbers.parquet", local.read())
    source = ParquetSource("memory://tables/numbers.parquet", options=FileOptions(block_bytes=1))
    check_exactly_once(source, expected)
    assert all_rows(ParquetSource("memory://tables/numbers.parquet", filters=[("id", "==", 7)])) == [expected[7]]


def test_what_it_tells(numbers):
    path, _ = numbers
    source = ParquetSource([path], options=FileOptions(block_bytes=1 << 30))
    assert source.describe() == {
        "format": "parquet",
        "files": 1,
        "bytes": os.path.getsize(path),
        "row_groups": 10,
        "blocks": 1,
        "rows": 1000,
        "columns": {"id": "int64", "half": "double", "name": "string"},
        "filters": None,
    }
    (version,) = source.versions()
    assert (version.path, version.size) == (path, os.path.getsize(path))


def test_a_damaged_file_is_named(numbers, tmp_path):
    path, _ = numbers
    content = Path(path).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[:-10])
    with pytest.raises(RecordError, match=r"cut\.parquet is damaged, or no Parquet file"):
        ParquetSource(str(tmp_path)).blocks()


def test_chunks_stay_small(tmp_path):
    pq.write_table(pa.table({"x": [bytes(1000)] * 20_000}), tmp_path / "x.parquet", row_group_size=20_000)
    source = ParquetSource(str(tmp_path))
    chunks = [chunk for block in source.blocks() for chunk in source.read(block)]
    assert sum(map(len, chunks)) == 20_000
    assert max(map(len, chunks)) < 4000  # of a kilobyte each


@pytest.mark.parametrize("renamed", [False, True])
def test_a_file_that_was_replaced_is_noticed_by_a_reader_that_is_used_again(tmp_path, renamed):
    """A file with as many bytes in the same places, which an open reader would take for the old one."""

    def write(first, path):
        table = pa.table({"id": range(first, first + 100)})
        pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)

    path = tmp_path / "x.parquet"
    write(1000, path)
    source = ParquetSource(str(path))
    assert [row["id"] for row in all_rows(source)] == list(range(1000, 1100))
    write(2000, tmp_path / "other")
    os.utime(tmp_path / "other", (1, 1))
    if renamed:
        os.replace(tmp_path / "other", path)
    else:
        path.write_bytes((tmp_path / "other").read_bytes())
        os.utime(path, (1, 1))
    with pytest.raises(ChangedFileError, match=r"x\.parquet"):
        all_rows(source)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=8),
    bad=st.integers(0, 7),
)
def test_only_the_rows_that_are_damaged_cannot_be_read(tmp_path_factory, sizes, bad):
    path = tmp_path_factory.mktemp("damaged") / "rows.parquet"
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    with pq.ParquetWriter(path, pa.schema([("x", pa.int64())]), use_dictionary=False) as writer:
        for start, size in zip(starts, sizes, strict=False):
            writer.write_table(pa.table({"x": range(start, start + size)}))
    bad %= len(sizes)
    column = pq.ParquetFile(path).metadata.row_group(bad).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = b"\xff" * (
        column.total_compressed_size
    )
    path.write_bytes(content)
    source = ParquetSource(str(path), options=FileOptions(block_bytes=1))
    for block in source.blocks():
        for _ in range(2):
            if starts[bad] <= block.start < starts[bad + 1]:
                with pytest.raises(RecordError, match="damaged"):
                    rows_of(source, block)
            else:
                assert [row["x"] for row in rows_of(source, block)] == list(range(block.start, block.stop))


def test_names_that_several_columns_have_are_refused(tmp_path):
    table = pa.table([[1, 2], [3, 4], [5, 6]], names=["a", "b", "a"])
    pq.write_table(table, tmp_path / "rows.parquet")
    path = str(tmp_path / "rows.parquet")
    for columns in (None, ["a"]):
        with pytest.raises(ValueError, match=r"rows.parquet' has several columns called \['a'\]"):
            ParquetSource(path, columns=columns).blocks()
    assert all_rows(ParquetSource(path, columns=["b"])) == [{"b": 3}, {"b": 4}]


def test_no_columns_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one column"):
        ParquetSource(str(tmp_path), columns=[])
