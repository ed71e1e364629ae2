from __future__ import annotations

import sys

import pytest

from headrace.base import optional
from headrace.base.errors import MissingExtraError
from headrace.inspecting import inspect
from headrace.sources.databases import open_postgres
from headrace.sources.retry import Retries
from headrace.sources.sql import SqlSource
from tests.sources.exactly_once import all_rows, check_exactly_once, check_other_processes, rows_of
from tests.sources.postgres import running_server

psycopg = pytest.importorskip("psycopg")

N_ROWS = 10_000
DRIVERS = ["adbc", "psycopg"]
TABLE = """
CREATE TABLE data (
    id integer,             -- unique, with gaps, half of them negative; every 50th is NULL
    place integer,          -- unique
    name text,              -- unique
    code char(4),
    at timestamptz,
    price numeric,
    "Odd ""Name" real,
    tags integer[],
    extra jsonb
)
"""
FILL = f"""
INSERT INTO data
SELECT
    CASE WHEN i % 50 > 0 THEN (CASE WHEN i % 2 = 0 THEN 1 ELSE -1 END) * i * 3 END,
    i,
    chr(97 + i % 26) || i || 'ä',
    lpad((i % 1000)::text, 4, 'x'),
    timestamptz '2024-01-01 00:00:00.000001+02' + i * interval '1 minute',
    i / 7.0,
    i / 3.0,
    ARRAY[i, i + 1],
    jsonb_build_object('i', i)
FROM generate_series(1, {N_ROWS}) AS i
"""


@pytest.fixture(scope="module")
def dsn():
    with running_server() as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute(TABLE)
            connection.execute(FILL)
            connection.execute("CREATE UNIQUE INDEX ON data (id)")
        all_rows(SqlSource(dsn, "SELECT 1"))  # pyarrow opens a pipe when it first reads a stream, and keeps it
        yield dsn


@pytest.fixture(params=DRIVERS)
def driver(request):
    pytest.importorskip({"adbc": "adbc_driver_postgresql.dbapi", "psycopg": "psycopg"}[request.param])
    if request.param == "adbc":
        pytest.importorskip("pyarrow")
    return request.param


def places(dsn, order):
    with psycopg.connect(dsn) as connection:
        return [place for (place,) in connection.execute(f"SELECT place FROM data ORDER BY {order}")]


@pytest.mark.parametrize("key", ["id", "name", "code", "at", "price", 'Odd "Name'])
def test_ranges_of_any_type_of_key_have_every_row_once(dsn, driver, key):
    quoted = '"' + key.replace('"', '""') + '"'
    source = SqlSource(dsn, "SELECT * FROM data", [key, "place"], block_rows=3000, driver=driver)
    expected = places(dsn, f"{quoted} NULLS LAST, place")
    blocks = source.blocks()
    assert sum(block.rows for block in blocks) == N_ROWS
    assert [row["place"] for row in all_rows(source)] == expected
    assert [row["place"] for row in rows_of(source, blocks[1], 17)] == expected[
        blocks[0].rows + 17 : blocks[0].rows + blocks[1].rows
    ]


def test_null_keys_are_a_block_of_their_own(dsn, driver):
    source = SqlSource(dsn, "SELECT id, place FROM data", ["id", "place"], block_rows=4000, driver=driver)
    assert [block.rows for block in source.blocks()] == [4000, 4000, 1800, 200]
    assert {row["id"] for row in rows_of(source, source.blocks()[-1])} == {None}


def test_few_rows_in_small_blocks_from_any_row_on(dsn, driver):
    query = "SELECT id, name FROM data WHERE place <= $1 AND name NOT LIKE '%5%'"
    with psycopg.connect(dsn) as connection:
        rows = psycopg.RawCursor(connection).execute(f"{query} ORDER BY id NULLS LAST", [60]).fetchall()
    expected = [{"id": key, "name": name} for key, name in rows]
    source = SqlSource(dsn, query, "id", parameters=[60], block_rows=17, driver=driver)
    check_exactly_once(source, expected, first_rows=[3])


def test_pages_and_whole_queries(dsn, driver):
    pages = SqlSource(dsn, "SELECT place FROM data", order_by="place", block_rows=2500, driver=driver)
    assert [block.rows for block in pages.blocks()] == [2500] * 4
    assert [row["place"] for row in all_rows(pages)] == list(range(1, N_ROWS + 1))
    whole = SqlSource(dsn, "SELECT place FROM data ORDER BY place DESC", driver=driver)
    (block,) = whole.blocks()
    assert [row["place"] for row in rows_of(whole, block, 4000)] == list(range(N_ROWS - 4000, 0, -1))
    assert whole.count() == N_ROWS


def test_both_drivers_give_the_same_values(dsn):
    pytest.importorskip("adbc_driver_postgresql")
    pytest.importorskip("pyarrow")

    def rows(driver):
        source = SqlSource(dsn, "SELECT * FROM data", "place", driver=driver)
        return [{**row, "tags": list(row["tags"])} for row in all_rows(source)[:200]]

    assert rows("adbc") == rows("psycopg")
    adbc, through_psycopg = (SqlSource(dsn, "SELECT * FROM data", "id", driver=driver) for driver in DRIVERS)
    assert list(adbc.blocks()) == list(through_psycopg.blocks())
    assert adbc.versions() == through_psycopg.versions()


@pytest.mark.parametrize("options", [{}, {"key": "place", "block_rows": N_ROWS}], ids=["whole", "range"])
def test_a_lost_connection_is_opened_again_at_the_row_reached(dsn, driver, options, monkeypatch):
    opened = []
    kind = type(open_postgres(dsn, driver))
    connect = kind._connect
    monkeypatch.setattr(kind, "_connect", lambda self: opened.append(1) or connect(self))
    query = "SELECT place, repeat(name, 400) AS filling FROM data ORDER BY place"
    source = SqlSource(dsn, query, driver=driver, retries=Retries(3, 0.01), **options)
    with psycopg.connect(dsn, autocommit=True) as killer:
        (block,) = source.blocks()
        opened.clear()
        seen = []
        for number, chunk in enumerate(source.read(block)):
            seen += [row["place"] for row in chunk.rows()]
            if number == 0:
                assert _kill_others(killer) == 1
    assert seen == list(range(1, N_ROWS + 1))
    # ADBC gets the answer to a query with parameters at once, so that there is nothing to get again.
    assert len(opened) == (1 if driver == "adbc" and options else 2)


def _kill_others(connection):
    """End all other connections; returns how many there were."""
    kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    others = "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    return len(connection.execute(f"{kill} {others}").fetchall())


def test_a_server_that_stays_away_is_told_in_the_end(dsn, driver):
    source = SqlSource(dsn, "SELECT place FROM data", "place", driver=driver, retries=Retries(2, 0.01))
    block = source.blocks()[0]
    source._database._dsn = dsn.replace("/postgres?", "/nowhere?")
    with pytest.raises(Exception, match='database "nowhere" does not exist'):
        rows_of(source, block)


def test_errors_in_the_query_are_told_at_once(dsn, driver):
    patient = Retries(9, 60.0)  # longer than any test may take
    with pytest.raises(Exception, match="syntax error"):
        SqlSource(dsn, "SELEC 1", driver=driver, retries=patient).blocks()
    divided = SqlSource(
        dsn, "SELECT 1 / (i - 400000) FROM generate_series(1, 500000) i", driver=driver, retries=patient
    )
    with pytest.raises(Exception, match="division by zero"):
        rows_of(divided, divided.blocks()[0])


def test_a_query_that_fails_is_told(dsn, driver):
    with pytest.raises(Exception, match="does not exist") as caught:
        SqlSource(dsn, "SELECT * FROM nowhere", "id", driver=driver).blocks()
    (note,) = caught.value.__notes__
    assert note == "This came of the query 'SELECT * FROM nowhere', which must be one SELECT statement."


def test_columns_of_one_name_are_refused(dsn, driver):
    with pytest.raises(ValueError, match=r"must have different names, got \['place', 'id', 'id'\]"):
        SqlSource(dsn, "SELECT place, id, id FROM data", "place", driver=driver).blocks()


def test_named_parameters_are_refused(driver):
    with pytest.raises(TypeError, match=r"must be a list of values .* PostgreSQL, got a mapping. Write \$1, \$2"):
        SqlSource("postgresql://host/db", "SELECT %(x)s", parameters={"x": 1}, driver=driver)


def test_nothing_can_be_written(dsn, driver):
    query = "WITH gone AS (DELETE FROM data RETURNING place) SELECT place FROM gone"
    with pytest.raises(Exception, match=r"data-modifying|read-only transaction"):
        SqlSource(dsn, query, driver=driver).blocks()
    with pytest.raises(Exception, match="read-only transaction"):
        open_postgres(dsn, driver).ask("DELETE FROM data")
    assert SqlSource(dsn, "SELECT * FROM data", driver=driver).count() == N_ROWS


def test_it_works_in_other_processes(dsn, driver):
    check_other_processes(SqlSource(dsn, "SELECT place, name FROM data", "place", block_rows=500, driver=driver))


def test_no_connection_is_left_open(dsn, driver):
    source = SqlSource(dsn, "SELECT place FROM data", "place", block_rows=500, driver=driver)
    chunks = source.read(source.blocks()[0])
    next(chunks)
    chunks.close()
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert _kill_others(connection) == 0


def test_the_password_is_not_shown():
    for driver in DRIVERS:
        location = open_postgres("postgresql://me:secret@host:5/db?password=secret", driver).location
        assert location == "postgresql://me@host:5/db"


def test_columns_as_arrays(dsn, driver):
    source = SqlSource(dsn, 'SELECT place, "Odd ""Name" AS x, name FROM data', "place", driver=driver)
    columns = next(source.read(source.blocks()[0])).columns()
    assert columns["place"][:3].tolist() == [1, 2, 3]
    assert columns["x"][2] == 1.0
    assert columns["name"][:2] == ["b1ä", "c2ä"]
    assert source.describe()["columns"] == {"place": "integer", "x": "real", "name": "text"}


def test_without_any_driver_the_extra_is_named(monkeypatch):
    for module in ("adbc_driver_postgresql", "psycopg"):
        monkeypatch.setitem(sys.modules, module, None)
    optional.is_installed.cache_clear()
    with pytest.raises(MissingExtraError, match=r"headrace\[sql\]"):
        open_postgres("postgresql://host/db")
    optional.is_installed.cache_clear()


def test_unknown_drivers_are_refused():
    with pytest.raises(ValueError, match="'adbc', 'psycopg' or None, got 'odbc'"):
        open_postgres("postgresql://host/db", "odbc")


def test_it_can_be_inspected(dsn, driver):
    query = "SELECT i AS id FROM generate_series(1, 7) i"
    found = inspect(dsn, query=query, driver=driver)
    assert (found.format, found.n_rows, found.samples[0]) == ("postgresql", 7, {"id": 1})
    assert found.columns == {"id": "integer"}
    assert inspect(dsn, driver=driver).details["query"] == 'SELECT * FROM "data"'  # the only table
