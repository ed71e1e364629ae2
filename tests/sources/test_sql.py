from __future__ import annotations

import sqlite3
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ChangedFileError
from headrace.sources.sql import SqlSource
from tests.sources.exactly_once import all_rows, check_exactly_once, check_other_processes, rows_of

KEYS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5) | st.none() | st.text(max_size=3) | st.floats(-9, 9)


def make(path, rows, columns="key, place, x"):
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE data ({columns})")
        connection.executemany(f"INSERT INTO data VALUES ({', '.join('?' * (columns.count(',') + 1))})", rows)
    connection.close()
    return str(path)


@pytest.fixture
def database(tmp_path):
    """1,000 rows: keys with gaps and negative ones, every tenth NULL."""
    rows = [(None if i % 10 == 0 else (i * 7919) % 3001 - 1500, i, i / 3) for i in range(1000)]
    return make(tmp_path / "x.db", rows)


def query(path, sql):
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(sql)]
    finally:
        connection.close()


@given(keys=st.lists(KEYS, max_size=40), block_rows=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_ranges_of_any_key_have_every_row_once(tmp_path_factory, keys, block_rows):
    path = make(tmp_path_factory.mktemp("sql") / "x.db", list(enumerate(keys)), "place, key")
    expected = query(path, "SELECT * FROM data ORDER BY key IS NULL, key, place")
    check_exactly_once(SqlSource(path, "SELECT * FROM data", ["key", "place"], block_rows=block_rows), expected)
    pages = SqlSource(path, "SELECT * FROM data", order_by="place", block_rows=block_rows)
    check_exactly_once(pages, query(path, "SELECT * FROM data ORDER BY place"))


def test_blocks_have_as_many_rows_as_asked_for_whatever_the_gaps(database):
    source = SqlSource(database, "SELECT * FROM data", "key", block_rows=100)
    assert [block.rows for block in source.blocks()] == [100] * 9 + [100]
    assert (source.blocks()[-1].start, source.blocks()[-1].stop) == (None, None)  # those whose key is NULL
    assert source.count() == 1000


def test_equal_keys_are_never_parted(tmp_path):
    path = make(tmp_path / "x.db", [(i // 7, i, 0.0) for i in range(70)])
    source = SqlSource(path, "SELECT * FROM data", ["key", "place"], block_rows=10)
    assert all(block.rows % 7 == 0 for block in source.blocks())
    assert [row["place"] for row in all_rows(source)] == list(range(70))


def test_without_a_key_the_query_is_one_block(database):
    source = SqlSource(database, "SELECT place FROM data ORDER BY place DESC;")
    check_exactly_once(source, [{"place": i} for i in reversed(range(1000))])
    assert [block.rows for block in source.blocks()] == [None]


def test_parameters_are_values_and_never_sql(database):
    hostile = "1; DROP TABLE data; --"
    source = SqlSource(database, "SELECT * FROM data WHERE place < ? AND ? <> 'a'", "key", parameters=[50, hostile])
    assert sorted(row["place"] for row in all_rows(source)) == list(range(50))


@pytest.mark.parametrize("sign", ":@$")
@pytest.mark.parametrize("options", [{}, {"key": "place"}, {"key": "key"}, {"order_by": "place"}], ids=str)
def test_parameters_may_have_names(database, sign, options):
    sql = f"SELECT * FROM data WHERE place < {sign}most AND place >= {sign}least AND place <> {sign}most - 1"
    parameters = MappingProxyType({"least": 10, "most": 50, "unused": 1})
    source = SqlSource(database, sql, parameters=parameters, block_rows=7, **options)
    assert sorted(row["place"] for row in all_rows(source)) == list(range(10, 49))
    assert source.count() == 39


def test_names_of_parameters_cannot_clash_with_our_own(database):
    names = ["headrace_border0", "headrace_border1", "headrace_border_0"]
    sql = f"SELECT * FROM data WHERE place < :{names[0]} AND place > :{names[1]} AND place <> :{names[2]}"
    parameters = dict(zip(names, (50, 9, 20), strict=True))
    source = SqlSource(database, sql, "place", parameters=parameters, block_rows=7)
    assert [row["place"] for row in all_rows(source)] == [i for i in range(10, 50) if i != 20]


def test_named_parameters_work_in_other_processes(database):
    options = {"parameters": {"most": 900}, "block_rows": 300}
    check_other_processes(SqlSource(database, "SELECT * FROM data WHERE place < :most", "place", **options))


@pytest.mark.parametrize("wrong", ["50", b"50", {50}, 50, None], ids=repr)
def test_parameters_of_other_kinds_are_refused(database, wrong):
    with pytest.raises(TypeError, match=r"`parameters` must be a list of values, or a mapping .*, got "):
        SqlSource(database, "SELECT * FROM data WHERE place < ?", parameters=wrong)


def test_columns_with_hostile_names(tmp_path):
    name = 'a"; DROP TABLE data; --'
    path = make(tmp_path / "x.db", [(3,), (1,), (2,)], '"a""; DROP TABLE data; --"')
    source = SqlSource(path, "SELECT * FROM data", name, block_rows=2)
    check_exactly_once(source, [{name: 1}, {name: 2}, {name: 3}])


def test_comments_and_semicolons_at_the_end_of_a_query(database):
    source = SqlSource(database, "SELECT place FROM data -- all of them", "place", block_rows=300)
    check_exactly_once(source, [{"place": i} for i in range(1000)])
    assert len(all_rows(SqlSource(database, " SELECT place FROM data ; ", "place"))) == 1000


def test_nothing_can_be_written(database):
    with pytest.raises(sqlite3.OperationalError):
        rows_of(source := SqlSource(database, "DELETE FROM data"), source.blocks()[0])
    assert SqlSource(database, "SELECT * FROM data").count() == 1000


@pytest.mark.parametrize("wrong", ["", " ;\n"])
def test_an_empty_query_is_refused(database, wrong):
    with pytest.raises(ValueError, match="`query` must be one SELECT statement, got"):
        SqlSource(database, wrong)


@pytest.mark.parametrize(
    "wrong", ["DELETE FROM data", "SELECT * FROM nowhere", "SELECT 1; SELECT 2", "SELECT * FROM data WHERE place < :x"]
)
@pytest.mark.parametrize("key", [None, "place"])
def test_a_query_that_fails_is_told(database, wrong, key):
    with pytest.raises(sqlite3.Error) as caught:
        SqlSource(database, wrong, key, parameters={"y": 1}).blocks()
    assert caught.value.__notes__ == [f"This came of the query {wrong!r}, which must be one SELECT statement."]


def test_a_query_that_fails_later_is_told_once_and_in_short(database):
    source = SqlSource(database, f"SELECT json(place || 'x') AS y, '{'z' * 5000}' AS z FROM data")
    with pytest.raises(sqlite3.OperationalError, match="malformed JSON") as caught:
        rows_of(source, source.blocks()[0])
    (note,) = caught.value.__notes__
    assert note.startswith("This came of the query \"SELECT json(place || 'x')")
    assert len(note) < 400


@pytest.mark.parametrize("options", [{"key": "place"}, {"order_by": "place"}], ids=str)
@pytest.mark.parametrize("twice", ["place, key, place", "place, key, KEY", "place, key, key, key, key, key, key"])
def test_columns_of_one_name_are_refused_with_a_key_too(database, options, twice):
    with pytest.raises(ValueError, match=r"must have different names, .*got \['place', 'key', "):
        SqlSource(database, f"SELECT {twice} FROM data", **options).blocks()


def test_columns_that_only_look_renamed(tmp_path):
    path = make(tmp_path / "x.db", [(1, 2)], 'a, "a:1"')
    assert all_rows(SqlSource(path, "SELECT * FROM data", "a")) == [{"a": 1, "a:1": 2}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "kye"}, r"must be columns of the query, \['key', 'place', 'x'\], got \['kye'\]"),
        ({"order_by": ["place", "y"]}, r"got \['y'\]"),
    ],
)
def test_columns_that_are_not_there_are_told(database, options, message):
    with pytest.raises(ValueError, match=message):
        SqlSource(database, "SELECT * FROM data", **options).blocks()


def test_arguments_are_checked(database, tmp_path):
    with pytest.raises(ValueError, match="exclude each other"):
        SqlSource(database, "SELECT * FROM data", "key", order_by="place")
    with pytest.raises(ValueError, match="at least 1"):
        SqlSource(database, "SELECT * FROM data", block_rows=0)
    with pytest.raises(ValueError, match="must be a file"):
        SqlSource(":memory:", "SELECT 1")
    with pytest.raises(FileNotFoundError, match=r"none\.db"):
        SqlSource(f"sqlite:///{tmp_path}/none.db", "SELECT 1")
    with pytest.raises(ValueError, match="mysql"):
        SqlSource("mysql://root:secret@host/x", "SELECT 1")
    with pytest.raises(ValueError, match=r"different names, got \['key', 'key'\]"):
        all_rows(SqlSource(database, "SELECT key, key FROM data"))


def test_a_url_means_an_absolute_path(database):
    assert SqlSource(f"sqlite:///{database}", "SELECT * FROM data").count() == 1000


def test_rows_that_came_or_went_since_the_listing_are_noticed(database):
    source = SqlSource(database, "SELECT * FROM data", "place", block_rows=100)
    blocks = source.blocks()
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO data VALUES (1, 150.5, 0)")
        connection.execute("DELETE FROM data WHERE place = 250")
        connection.execute("INSERT INTO data VALUES (1, 1000, 0)")
    connection.close()
    assert len(rows_of(source, blocks[0])) == 100
    with pytest.raises(ChangedFileError, match="had 100 rows from 100 to 200 when it was listed, and has more now"):
        rows_of(source, blocks[1])
    with pytest.raises(ChangedFileError, match="and has 99 now"):
        rows_of(source, blocks[2])
    assert rows_of(source, blocks[-1])[-1]["place"] == 999  # rows added at the end do not belong to this listing


def test_the_version_changes_with_the_blocks(database):
    def version():
        return SqlSource(database, "SELECT * FROM data", "place", block_rows=100).versions()

    before = version()
    assert version() == before
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO data VALUES (1, 1000, 0)")
    connection.close()
    assert version() != before


def test_types_as_columns(tmp_path):
    rows = [(1, 0.5, "a", b"\0", None, 2**62), (2, None, None, b"", 3, 5)]
    path = make(tmp_path / "x.db", rows, "whole INTEGER, half REAL, text TEXT, raw BLOB, gaps INTEGER, large INTEGER")
    source = SqlSource(path, "SELECT * FROM data", "whole")
    (chunk,) = source.read(source.blocks()[0])
    columns = chunk.columns()
    assert columns["whole"].dtype == columns["large"].dtype == np.int64
    np.testing.assert_array_equal(columns["half"], [0.5, np.nan])
    assert (columns["text"], columns["raw"], columns["gaps"]) == (["a", None], [b"\0", b""], [None, 3])
    assert columns["large"].tolist() == [2**62, 5]
    assert source.describe()["columns"]["text"] == "text"


def test_an_empty_table_has_no_blocks(tmp_path):
    path = make(tmp_path / "x.db", [])
    for options in ({"key": "key"}, {"order_by": "key"}):
        source = SqlSource(path, "SELECT * FROM data", **options)
        assert list(source.blocks()) == []
    assert all_rows(SqlSource(path, "SELECT * FROM data")) == []


def test_it_works_in_other_processes(database):
    check_other_processes(SqlSource(database, "SELECT * FROM data", "place", block_rows=300))


def test_what_it_tells(database):
    assert SqlSource(database, "SELECT key, x FROM data WHERE key IS NOT NULL", "key").describe() == {
        "format": "sqlite",
        "location": database,
        "query": "SELECT key, x FROM data WHERE key IS NOT NULL",
        "key": ["key"],
        "order_by": None,
        "columns": {"key": "integer", "x": "real"},
        "blocks": 1,
    }
