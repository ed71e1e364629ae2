"""Looking into data: every format, known by its name or by its content; and what is said when that fails."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from headrace.base.errors import InspectError
from headrace.inspecting import as_plain, inspect, show_size
from headrace.sources.guessing import format_by_name, format_of
from headrace.streams.readers import mix, read_csv, read_text
from tests.sources.archives import tar_bytes
from tests.sources.shard_files import example, tfrecord, write_mds

ROWS = [{"id": i, "name": f"row {i}"} for i in range(10)]


def write_text(path):
    path.write_text("".join(f"{row['name']}\n" for row in ROWS))


def write_csv(path, separator=","):
    path.write_text(f"id{separator}name\n" + "".join(f"{row['id']}{separator}{row['name']}\n" for row in ROWS))


def write_jsonl(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def write_parquet(path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), path)


def write_arrow(path):
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def write_arrow_stream(path):
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def write_tar(path):
    members = [(f"{row['id']:03}.{field}", str(row[field]).encode()) for row in ROWS for field in row]
    path.write_bytes(tar_bytes([(name.replace(".name", ".txt"), content) for name, content in members]))


def write_sqlite(path):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE data (id INTEGER, name TEXT)")
        database.executemany("INSERT INTO data VALUES (?, ?)", [tuple(row.values()) for row in ROWS])


WRITERS = {
    "text": write_text,
    "csv": write_csv,
    "tsv": lambda path: write_csv(path, "\t"),
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "tar": write_tar,
    "sqlite": write_sqlite,
}
SUFFIXES = {"text": "txt", "sqlite": "db"}
FIELDS = {"text": ["text"], "tar": ["__key__", "id", "txt"]}
SAMPLES = {"text": "row 0", "tar": {"__key__": "000", "id": 0, "txt": "row 0"}}


class TestEveryFormat:
    @pytest.mark.parametrize("name", WRITERS)
    @pytest.mark.parametrize("is_named", [True, False], ids=["by name", "by content"])
    def test_is_found_and_described(self, tmp_path, name, is_named):
        path = tmp_path / (f"data.{SUFFIXES.get(name, name)}" if is_named else "data")
        WRITERS[name](path)
        found = inspect(path, samples=2)
        assert (found.format, found.n_rows, found.rows_are, found.n_bad) == (name, 10, "exact", 0)
        assert list(found.columns) == FIELDS.get(name, ["id", "name"])
        assert len(found.samples) == 2
        assert found.samples[0] == SAMPLES.get(name, ROWS[0])
        if name != "sqlite":
            assert found.files == [(str(path), path.stat().st_size)]
            assert found.n_bytes == path.stat().st_size

    @pytest.mark.parametrize("name", WRITERS)
    def test_prints_and_becomes_plain_values(self, tmp_path, name):
        path = tmp_path / "data"
        WRITERS[name](path)
        found = inspect(path)
        plain = json.loads(json.dumps(found.to_dict()))
        assert plain["format"] == name
        assert plain["columns"] == dict(found.columns)
        text = str(found)
        assert text.startswith(f"{name}: ")
        assert "10 rows" in text
        assert all(column in text for column in found.columns)
        assert repr(found.samples[0]) in text

    def test_a_stream_of_arrow(self, tmp_path):
        write_arrow_stream(tmp_path / "data")
        found = inspect(tmp_path)
        assert (found.format, found.n_rows) == ("arrow", 10)
        assert found.details["record_batches"] == 1

    def test_compressed_files(self, tmp_path):
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y\n1,2\n"))
        found = inspect(tmp_path)
        assert (found.format, found.details["compression"], found.samples) == ("csv", ["gzip"], [{"x": 1, "y": 2}])
        (tmp_path / "a.csv.gz").rename(tmp_path / "unnamed")
        assert inspect(tmp_path).format == "csv"

    def test_the_format_can_be_given(self, tmp_path):
        write_csv(tmp_path / "data.csv")
        found = inspect(tmp_path, format="text")
        assert (found.format, found.samples[0]) == ("text", "id,name")

    def test_options_are_those_of_the_reader(self, tmp_path):
        write_csv(tmp_path / "data.csv", ";")
        assert inspect(tmp_path, separator=";").samples[1] == ROWS[1]

    def test_a_store(self):
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe({"/looked/a.txt": b"a\nb\n", "/looked/b.txt": b"c\n"})
        found = inspect("memory://looked/*")
        assert (found.format, found.n_rows, len(found.files)) == ("text", 3, 2)


class TestStreams:
    def test_samples_are_what_the_steps_make(self, tmp_path):
        write_text(tmp_path / "a.txt")
        found = inspect(read_text(tmp_path).map(str.upper).skip(1))
        assert found.samples[0] == "ROW 1"
        assert found.details["steps"] == ["Map"]
        assert found.n_rows == 10  # of what is read

    def test_a_mix_has_no_blocks_of_its_own(self, tmp_path):
        write_text(tmp_path / "a.txt")
        found = inspect(mix([read_text(tmp_path), read_text(tmp_path)]))
        assert (found.n_blocks, found.n_rows, len(found.samples)) == (None, None, 3)
        assert str(found).startswith("a mix of text, text: 2 files, unknown size, an unknown number of rows")

    def test_columns_of_a_table(self, tmp_path):
        write_csv(tmp_path / "a.csv")
        assert inspect(read_csv(tmp_path)).columns == {"id": "int", "name": "str"}


class TestCounting:
    def test_a_limit_leaves_an_estimate(self, tmp_path):
        (tmp_path / "a.txt").write_text("0123456789\n" * 10_000)
        found = inspect(tmp_path, most_rows=5000, block_bytes=11_000)
        assert found.rows_are == "about"
        assert found.n_rows == pytest.approx(10_000, rel=0.01)
        assert "about 10," in str(found) or "about 9," in str(found)

    def test_or_the_least_that_there_is(self, tmp_path):
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"0123456789\n" * 100_000))
        found = inspect(tmp_path, most_rows=5000)
        assert found.rows_are == "at least"
        assert 5000 < found.n_rows < 100_000
        assert "at least " in str(found)

    def test_bad_records_are_counted_and_the_first_is_shown(self, tmp_path):
        (tmp_path / "a.jsonl").write_text('{"a": 1}\n{oops\n{"a": 2}\n{oops\n')
        found = inspect(tmp_path)
        assert (found.n_rows, found.n_bad) == (2, 2)
        assert "line 2 of these" in found.first_bad
        assert "bad records: 2" in str(found)

    def test_nothing_but_bad_records(self, tmp_path):
        (tmp_path / "a.jsonl").write_text("oops\n{oops\n")
        found = inspect(tmp_path)
        assert (found.n_rows, found.n_bad, found.is_readable) == (0, 2, False)
        assert "bad records: 2, which are all; the first is " in str(found)

    def test_fields_of_several_types(self, tmp_path):
        (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": null, "b": [1]}\n')
        assert inspect(tmp_path).columns == {"a": "int or null", "b": "list"}

    def test_nothing_at_all(self, tmp_path):
        (tmp_path / "a.txt").write_text("")
        found = inspect(tmp_path)
        assert (found.n_rows, found.n_blocks, found.samples) == (0, 0, [])
        assert str(found).startswith("text: 1 file, 0 bytes, 0 blocks, 0 rows")


class TestDatabases:
    def test_a_query(self, tmp_path):
        write_sqlite(tmp_path / "x.db")
        found = inspect(tmp_path / "x.db", query="SELECT name FROM data WHERE id < 3")
        assert (found.n_rows, found.columns) == (3, {"name": "text"})
        assert inspect(f"sqlite:///{tmp_path}/x.db").n_rows == 10

    def test_several_tables_are_named(self, tmp_path):
        write_sqlite(tmp_path / "x.db")
        with closing(sqlite3.connect(tmp_path / "x.db")) as database:
            database.execute("CREATE TABLE more (id INTEGER)")
        with pytest.raises(InspectError, match=r"x\.db has 'data', 'more'\. Pass the query that is meant: query="):
            inspect(tmp_path / "x.db")

    def test_a_wrong_query(self, tmp_path):
        write_sqlite(tmp_path / "x.db")
        with pytest.raises(InspectError, match="OperationalError: no such table: missing"):
            inspect(tmp_path / "x.db", query="SELECT * FROM missing")

    def test_no_password_is_told(self):
        pytest.importorskip("psycopg")
        with pytest.raises(InspectError, match="nowhere") as raised:
            inspect("postgresql://me:secret@127.0.0.1:1/nowhere", driver="psycopg", query="SELECT 1")
        assert "secret" not in str(raised.value)


class TestMistakes:
    def test_no_such_file(self, tmp_path):
        with pytest.raises(InspectError, match="matches no file"):
            inspect(tmp_path / "none.csv")

    def test_nobody_knows_the_format(self, tmp_path):
        (tmp_path / "data").write_bytes(b"\x89\x00\xff")
        with pytest.raises(InspectError, match=r"neither from its name nor from its first bytes\. Pass format="):
            inspect(tmp_path)

    def test_several_formats(self, tmp_path):
        write_csv(tmp_path / "a.csv")
        write_text(tmp_path / "a.txt")
        with pytest.raises(InspectError, match=r"several formats: csv \(1\), text \(1\)\. Pass a glob"):
            inspect(tmp_path)
        assert inspect(f"{tmp_path}/*.csv").format == "csv"

    def test_a_format_that_is_none(self, tmp_path):
        with pytest.raises(InspectError, match=r"format must be one of text, csv, .* got 'xml'"):
            inspect(tmp_path, format="xml")

    def test_a_file_that_is_not_what_its_name_says(self, tmp_path):
        pytest.importorskip("pyarrow")
        (tmp_path / "a.parquet").write_text("not at all")
        with pytest.raises(InspectError, match=r"a\.parquet is damaged, or no Parquet file.*pass another format="):
            inspect(tmp_path)

    @pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.jsonl", "unnamed"])
    @pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
    def test_an_encoding_that_a_byte_order_mark_tells(self, tmp_path, name, encoding):
        (tmp_path / name).write_text("id,name\n1,ä\n2,b\n", encoding=encoding)
        told = rf'{name}.* begins with the byte order mark of {encoding}\. Pass encoding="{encoding}" \(--encoding'
        with pytest.raises(InspectError, match=told):
            inspect(tmp_path)

    def test_a_compressed_file_with_a_byte_order_mark(self, tmp_path):
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress("id,name\n1,ä\n".encode("utf-16")))
        with pytest.raises(InspectError, match='Pass encoding="utf-16"'):
            inspect(tmp_path)
        assert inspect(tmp_path, encoding="utf-16").samples == [{"id": 1, "name": "ä"}]

    def test_a_query_without_a_database(self, tmp_path):
        write_csv(tmp_path / "a.csv")
        with pytest.raises(InspectError, match=r"A query needs a database"):
            inspect(tmp_path, query="SELECT 1", format="csv")
        with pytest.raises(InspectError, match=r"A query needs a database, but '.*a\.csv' is csv\. Leave query="):
            inspect(tmp_path / "a.csv", query="SELECT 1")

    def test_a_query_of_a_file_that_only_looks_like_a_database(self, tmp_path):
        write_csv(tmp_path / "a.db")
        with pytest.raises(InspectError, match="not a database"):
            inspect(tmp_path / "a.db", query="SELECT 1")

    def test_an_option_that_the_reader_does_not_have(self, tmp_path):
        write_text(tmp_path / "a.txt")
        with pytest.raises(InspectError, match="unexpected keyword argument 'colour'"):
            inspect(tmp_path, colour="red")

    def test_negative_numbers(self, tmp_path):
        with pytest.raises(InspectError, match="at least 0, got -1"):
            inspect(tmp_path, samples=-1)


def test_names_of_columns_are_shown_on_their_line(tmp_path):
    (tmp_path / "a.csv").write_text('"a\x1b[0m","two\nlines"\n1,2\n')
    text = str(inspect(tmp_path))
    assert "\x1b" not in text
    assert r"  a\x1b[0m    int" in text.splitlines()
    assert r"  two\nlines  int" in text.splitlines()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.csv", "csv"),
        ("a.CSV.GZ", "csv"),
        ("part.001.parquet", "parquet"),
        ("x.tgz", "tar"),
        ("https://host/a.tsv?token=x.csv", "tsv"),
        ("s3://b/a.jsonl.zst", "jsonl"),
        ("a.gz", None),
        ("a", None),
        ("a.json", None),
        ("postgres://host/x", "postgresql"),
    ],
)
def test_names(path, expected):
    assert format_by_name(path) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "text"),
        (b"some words, and more\nother words\n", "text"),
        (b"a,b\n", "text"),  # one line is no table
        (b'a,b\n1,"x,y"\n', "csv"),
        (b"a\tb\n1\t2\n", "tsv"),
        (b'{"a": 1}\n[2]\n', "jsonl"),
        (b'{\n  "a": 1\n}\n', None),  # a JSON document
        (b"{not json\n", "text"),
        (b"\x00\x01", None),
        ("ä".encode("utf-16"), "text"),
        ("a,b\n1,ä\n".encode("utf-32"), "csv"),
        ("ä".encode("utf-16-le"), None),  # without a mark
        ("a,b\n1,2\n".encode("utf-8-sig"), "csv"),
        (b"x" * 70_000, "text"),
        ("ä\n".encode() * 30_000, "text"),
    ],
)
def test_contents(content, expected):
    assert format_of(content[: 1 << 16]) == expected


def test_long_values_are_shortened():
    assert as_plain("x" * 300) == "x" * 200 + "… (300 characters)"
    assert as_plain(b"\x01\x02") == "<2 bytes: 01 02…>"
    assert as_plain(np.zeros((4, 4), np.uint8)) == "<uint8 array of shape (4, 4)>"
    assert as_plain({"a": np.arange(3), "b": np.float32(0.5)}) == {"a": [0, 1, 2], "b": 0.5}
    assert as_plain(list(range(30))) == [*range(20), "… 10 more"]
    assert as_plain({i: i for i in range(30)})["…"] == "10 more"
    assert as_plain(1j) == "1j"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2 * 10**9, "2.0 GB"), (None, "unknown size")],
)
def test_sizes(size, shown):
    assert show_size(size) == shown


def test_files_of_other_libraries_are_known_by_their_names(tmp_path):
    (tmp_path / "x.tfrecord").write_bytes(tfrecord([example({"id": [7]})]))
    np.save(tmp_path / "x.npy", np.arange(3))
    write_mds(tmp_path / "mds", [[(5, "word")]])
    assert (inspect(tmp_path / "x.tfrecord").format, inspect(tmp_path / "x.tfrecord").n_rows) == ("tfrecord", 1)
    assert inspect(tmp_path / "x.npy").samples == [{"array": 0}, {"array": 1}, {"array": 2}]
    assert inspect(tmp_path / "mds", format="mds").samples == [{"id": 5, "word": "word"}]
