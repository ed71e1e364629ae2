from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ChangedFileError, RecordError
from headrace.sources.options import FileOptions
from tests.sources.exactly_once import all_rows, check_exactly_once, check_other_processes, rows_of

pa = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")

from headrace.sources.arrow_footer import rows_of_batches  # noqa: E402 (needs pyarrow)
from headrace.sources.arrow_ipc import ArrowSource  # noqa: E402 (needs pyarrow)

ROWS = st.fixed_dictionaries({"id": st.integers(0, 99) | st.none(), "text": st.text(max_size=4) | st.none()})
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def write(path, batches, *, stream=False, schema=SCHEMA, compression=None):
    new = ipc.new_stream if stream else ipc.new_file
    with new(str(path), schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        for rows in batches:
            writer.write(pa.RecordBatch.from_pylist(rows, schema))


@given(
    batches=st.lists(st.lists(ROWS, max_size=8), max_size=6),
    stream=st.booleans(),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    block_bytes=st.sampled_from([1, 500, 1 << 20]),
)
@settings(max_examples=60, deadline=None)
def test_every_row_comes_once_from_any_row_on(tmp_path_factory, batches, stream, compression, block_bytes):
    folder = tmp_path_factory.mktemp("arrow")
    write(folder / "0.arrow", batches, stream=stream, compression=compression)
    write(folder / "1.arrow", [[{"id": 1, "text": "last"}]])
    source = ArrowSource(str(folder), options=FileOptions(block_bytes=block_bytes))
    check_exactly_once(source, [*(row for rows in batches for row in rows), {"id": 1, "text": "last"}])
    assert source.describe()["record_batches"] == len(batches) + 1


def test_record_batches_are_blocks_and_small_ones_are_joined(tmp_path):
    write(tmp_path / "x.feather", [[{"id": i}] * 10 for i in range(4)])
    assert [block.rows for block in ArrowSource(str(tmp_path), options=FileOptions(block_bytes=1)).blocks()] == [10] * 4
    assert [block.rows for block in ArrowSource(str(tmp_path), options=FileOptions(block_bytes=1 << 20)).blocks()] == [
        40
    ]


def test_only_the_columns_asked_for_come_in_the_order_asked_for(tmp_path):
    write(tmp_path / "0.arrow", [[{"id": 1, "text": "a"}]])
    write(tmp_path / "1.arrow", [[{"id": 2, "text": "b"}]], stream=True)
    assert all_rows(ArrowSource(str(tmp_path), columns=["text"])) == [{"text": "a"}, {"text": "b"}]
    assert list(all_rows(ArrowSource(str(tmp_path), columns=["text", "id"]))[1]) == ["text", "id"]


def test_files_with_other_columns_are_refused_by_name(tmp_path):
    write(tmp_path / "0.arrow", [[{"id": 1, "text": "a"}]])
    write(tmp_path / "1.arrow", [[{"id": 1.5}]], schema=pa.schema([("id", pa.float64())]))
    with pytest.raises(ValueError, match=r"'id' is int64 in '.*0.arrow' and double in '.*1.arrow'"):
        ArrowSource(str(tmp_path)).blocks()


def test_large_record_batches_come_in_small_chunks(tmp_path):
    write(tmp_path / "x.arrow", [[{"id": 1, "text": "x" * 1000}] * 10_000])
    source = ArrowSource(str(tmp_path))
    (block,) = source.blocks()
    assert max(len(chunk) for chunk in source.read(block)) < 4000  # of a kilobyte each


def test_a_compressed_stream(tmp_path):
    write(tmp_path / "x.arrow", [[{"id": 1, "text": "a"}], [{"id": 2, "text": "b"}]], stream=True)
    (tmp_path / "x.arrow.gz").write_bytes(gzip.compress((tmp_path / "x.arrow").read_bytes()))
    check_exactly_once(ArrowSource(str(tmp_path / "x.arrow.gz")), [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])


@pytest.mark.parametrize("content", [b"", b"no arrow here, but some other bytes", b"ARROW1 and then nothing"])
def test_what_is_no_arrow_file_is_told(tmp_path, content):
    (tmp_path / "x.arrow").write_bytes(content)
    with pytest.raises(RecordError, match=r"x\.arrow is damaged, or no Arrow file"):
        ArrowSource(str(tmp_path)).blocks()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"PAR1" + bytes(100), "begins like parquet. Use read_parquet"),
        (b"a,b\n1,2\n", "begins like csv. Use read_csv"),
        (b"SQLite format 3\0", "begins like sqlite. Use read_sql"),
    ],
)
def test_files_of_other_formats_are_told_with_their_reader(tmp_path, content, told):
    (tmp_path / "x.arrow").write_bytes(content)
    with pytest.raises(RecordError, match=rf"x\.arrow is damaged, or no Arrow file: it {told}\b"):
        ArrowSource(str(tmp_path)).blocks()


def test_a_stream_that_was_cut_is_told(tmp_path):
    write(tmp_path / "x.arrow", [[{"id": i, "text": "a"}] * 9 for i in range(3)], stream=True)
    content = (tmp_path / "x.arrow").read_bytes()
    (tmp_path / "x.arrow").write_bytes(content[:-100])
    source = ArrowSource(str(tmp_path))
    with pytest.raises(RecordError, match=r"x\.arrow is damaged"):
        rows_of(source, source.blocks()[0])


def test_a_file_that_changed_since_it_was_listed_is_noticed(tmp_path):
    write(tmp_path / "x.arrow", [[{"id": 1}]])
    source = ArrowSource(str(tmp_path))
    block = source.blocks()[0]
    os.utime(tmp_path / "x.arrow", ns=(0, 0))
    with pytest.raises(ChangedFileError, match=r"x\.arrow"):
        rows_of(source, block)


def test_it_works_in_other_processes(tmp_path):
    write(tmp_path / "x.arrow", [[{"id": i, "text": None}] * 3 for i in range(3)])
    check_other_processes(ArrowSource(str(tmp_path), options=FileOptions(block_bytes=1)))


def test_remote_files_have_no_counts(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    batches = [[{"id": i, "text": str(i)}] * 5 for i in range(4)]
    for name, stream in (("file", False), ("stream", True)):
        write(tmp_path / name, batches, stream=stream)
        fsspec.filesystem("memory").pipe(f"/arrow/{name}", (tmp_path / name).read_bytes())
        source = ArrowSource(f"memory://arrow/{name}", options=FileOptions(block_bytes=1))
        check_exactly_once(source, [row for rows in batches for row in rows])
        assert len(source.blocks()) == (1 if stream else 4)
        assert source.describe()["rows"] is None


def test_what_it_tells(tmp_path):
    write(tmp_path / "x.arrow", [[{"id": 1}] * 3])
    assert ArrowSource(str(tmp_path)).describe() == {
        "format": "arrow",
        "files": 1,
        "bytes": (tmp_path / "x.arrow").stat().st_size,
        "record_batches": 1,
        "blocks": 1,
        "rows": 3,
        "columns": {"id": "int64", "text": "string"},
    }


@pytest.mark.parametrize("change", ["cut off", "rewritten"])
def test_files_that_change_while_they_are_read_are_noticed(tmp_path, change):
    """Mapped into memory, they would end the process, or give rows of both."""
    path = tmp_path / "rows.arrow"

    def write(value):
        table = pa.table({"x": [value * 10_000] * 300})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)

    write("a")
    source = ArrowSource(str(path))
    [block] = source.blocks()
    chunks = source.read(block)
    first = next(chunks)
    if change == "cut off":
        os.truncate(path, 1000)
    else:
        time.sleep(0.02)  # longer than the clock of the file system ticks
        write("b")
    assert {row["x"][0] for row in first.rows()} == {"a"}
    with pytest.raises((RecordError, ChangedFileError)):
        list(chunks)


_CUT_OFF = """
import os, sys
import pyarrow as pa
from headrace.base.errors import ChangedFileError, RecordError
from headrace.sources import arrow_ipc
path, when = sys.argv[1:]
batch = pa.record_batch({"a": list(range(200_000))})
with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
    for _ in range(8):
        writer.write_batch(batch)
if when == "while it is looked into":
    open_file = arrow_ipc.ipc.open_file
    def cut_then_open(opened, **options):
        reader = open_file(opened, **options)
        os.truncate(path, 5000)
        return reader
    arrow_ipc.ipc.open_file = cut_then_open
source = arrow_ipc.ArrowSource(path)
try:
    chunks = (chunk for block in source.blocks() for chunk in source.read(block))
    next(chunks)
    os.truncate(path, 5000)
    for chunk in chunks:
        chunk.rows()
except (ChangedFileError, RecordError) as error:
    print(error)
"""


@pytest.mark.parametrize("when", ["while it is looked into", "while it is read"])
def test_a_file_that_is_cut_off_does_not_end_the_process(tmp_path, when):
    """In a process of its own, which a memory map would end by SIGBUS."""
    arguments = [sys.executable, "-c", _CUT_OFF, str(tmp_path / "t.arrow"), when]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "t.arrow" in done.stdout


def test_the_rows_of_each_batch_are_told_by_the_file(tmp_path):
    path = tmp_path / "t.arrow"
    counts = [5, 0, 1, 700]
    for metadata in (None, {"k": "v" * 1000}):
        batch = pa.record_batch({"a": list(range(700)), "b": ["x"] * 700}).replace_schema_metadata(metadata)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            for n in counts:
                writer.write_batch(batch.slice(0, n))
        with open(path, "rb") as file:
            assert rows_of_batches(file) == counts
