"""Each reader gives the rows of its kind of source, and passes its options on."""

from __future__ import annotations

import gzip
import inspect
import sqlite3
from contextlib import closing
from dataclasses import fields, replace

import pytest

from headrace import FileOptions, read_arrow, read_csv, read_jsonl, read_parquet, read_sql, read_tar, read_text
from headrace.sources.options import TextArguments
from headrace.sources.sql import SqlSource
from headrace.sources.tar import TarSource
from tests.sources.archives import tar_bytes


@pytest.mark.parametrize("read", [read_text, read_jsonl, read_csv, read_tar, read_parquet, read_arrow])
@pytest.mark.parametrize("paths", [5, None, b"a.txt", ["a.txt", 5]])
def test_what_is_no_path(read, paths):
    if read in (read_parquet, read_arrow):
        pytest.importorskip("pyarrow")
    with pytest.raises(TypeError, match=r"paths must be a path or address, or a list of them, got (5|None|b'a\.txt')"):
        read(paths)


def test_paths_may_come_from_an_iterator(tmp_path):
    (tmp_path / "a").write_text("x")
    stream = read_text(tmp_path / name for name in ["a"])
    assert list(stream) == list(stream) == ["x"]


def test_what_is_no_database():
    with pytest.raises(TypeError, match=r"dsn must be a path, .* got 5"):
        read_sql(5, "SELECT 1")


def test_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("eins\nzwölf\n".encode("latin-1"))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"drei"))
    assert list(read_text(tmp_path, encoding="latin-1")) == ["eins", "zwölf", "drei"]
    assert list(read_text(f"{tmp_path}/*.txt", encoding="latin-1", whole_files=True)) == ["eins\nzwölf\n"]


def test_jsonl(tmp_path):
    (tmp_path / "a").write_text('{"a": [1]}\n2\n"x"\n')
    assert list(read_jsonl(tmp_path / "a")) == [{"a": [1]}, 2, "x"]


def test_csv(tmp_path):
    (tmp_path / "a").write_text('n,s\n1,"a\nb"\n2,c\n')
    stream = read_csv(tmp_path / "a", types={"n": "float"})
    assert list(stream) == [{"n": 1.0, "s": "a\nb"}, {"n": 2.0, "s": "c"}]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tables_of_arrow(tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"n": [1, 2], "s": ["a", "b"]})
    path = tmp_path / "table"
    if kind == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    read = {"parquet": read_parquet, "arrow": read_arrow}[kind]
    assert list(read(path)) == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]
    assert list(read(path, columns=["s"])) == [{"s": "a"}, {"s": "b"}]
    assert len(read(path)) == 2


def test_tar(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes([("1.txt", b"one"), ("1.json", b"[1]"), ("2.txt", b"two")]))
    samples = list(read_tar(tmp_path / "a.tar"))
    assert [(sample["__key__"], sample["txt"]) for sample in samples] == [("1", "one"), ("2", "two")]
    assert samples[0]["json"] == [1]
    assert next(iter(read_tar(tmp_path / "a.tar", decode=False)))["json"] == b"[1]"


def test_sql(tmp_path):
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER, s TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(i, str(i)) for i in range(5)])
    expected = [{"id": i, "s": str(i)} for i in range(5)]
    assert list(read_sql(str(path), "SELECT * FROM t ORDER BY id")) == expected
    assert list(read_sql(path, "SELECT * FROM t ORDER BY id")) == expected
    assert list(read_sql(f"sqlite:///{path}", "SELECT * FROM t", "id", block_rows=2)) == expected


@pytest.mark.parametrize("read", [read_csv, read_parquet, read_arrow])
def test_rows_are_dicts_or_columns(tmp_path, read):
    if read is not read_csv:
        pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="'dicts' or 'columns', got 'lists'"):
        read(tmp_path, rows="lists")


@pytest.mark.parametrize("read", [read_text, read_jsonl, read_csv, read_tar, read_sql])
def test_an_option_that_there_is_not_is_refused(read):
    with pytest.raises(TypeError, match=rf"^{read.__name__}\(\) got an unexpected keyword argument 'blok_bytes'"):
        read("a", *["SELECT 1"] * (read is read_sql), blok_bytes=1)


def defaults(function):
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def test_readers_of_text_take_all_options_of_files():
    assert set(TextArguments.__annotations__) == {field.name for field in fields(FileOptions)}


@pytest.mark.parametrize(("read", "source"), [(read_tar, TarSource), (read_sql, SqlSource)])
def test_readers_name_all_options_of_their_source(read, source):
    options = {name: default for name, default in defaults(source).items() if name != "options"}
    assert options.items() <= defaults(read).items()


class TestFileOptions:
    @pytest.fixture
    def path(self, tmp_path):
        (tmp_path / "a.txt").write_bytes("zwölf".encode("latin-1"))
        return tmp_path / "a.txt"

    def test_one_object_serves_many_readers(self, path):
        options = FileOptions(encoding="latin-1")
        assert list(read_text(path, files=options)) == ["zwölf"]
        assert list(read_csv(path, header=False, files=options)) == [{"f0": "zwölf"}]

    def test_arguments_take_precedence(self, path):
        options = FileOptions(encoding="ascii", errors="replace")
        assert list(read_text(path, files=options, encoding="latin-1")) == ["zwölf"]

    def test_what_are_no_options(self, path):
        with pytest.raises(TypeError, match="files must be a FileOptions, got 'latin-1'"):
            read_text(path, files="latin-1")

    def test_a_cache_that_is_off_stays_off(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
        assert FileOptions().open_cache.folder == str(tmp_path)
        assert replace(FileOptions(cache=False), block_bytes=1).open_cache is None

    def test_none_means_the_default_retries(self, path):
        assert list(read_text(path, encoding="latin-1", retries=None)) == ["zwölf"]


@pytest.mark.parametrize("read", [read_parquet, read_arrow])
def test_columns_twice_are_refused(tmp_path, read):
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match=r"`columns` must name each column once, got \['i'\] more than once"):
        read(tmp_path, columns=["i", "j", "i"])
