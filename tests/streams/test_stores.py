"""Streams from stores on the network: worker processes read an object store and a database, each row once."""

from __future__ import annotations

import pytest

from headrace import DataLoader, read_sql, read_text
from tests.sources.postgres import running_server
from tests.sources.servers import s3_server

__all__ = ["s3_server"]  # a fixture

LINES = [f"line {i}" for i in range(500)]


@pytest.fixture(scope="module")
def remote_lines(s3_server):
    """The address of lines in S3, and the options to read them; once read here, so that clients are running."""
    s3fs = pytest.importorskip("s3fs")
    options = {"client_kwargs": {"endpoint_url": s3_server.direct_url}}
    store = s3fs.S3FileSystem(**options)
    store.mkdir("streams")
    store.pipe("streams/lines.txt", "\n".join(LINES).encode())
    stream = read_text("s3://streams/lines.txt", block_bytes=1000, storage_options=options)
    assert list(stream) == LINES
    return stream


@pytest.mark.filterwarnings("ignore:.*fork")
def test_lines_of_an_object_store(remote_lines):
    with DataLoader(remote_lines, batch_size=32, num_workers=2) as loader:
        assert [line for batch in loader for line in batch] == LINES


@pytest.fixture(scope="module")
def dsn():
    psycopg = pytest.importorskip("psycopg")
    with running_server() as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE squares (id integer PRIMARY KEY, square bigint)")
            connection.execute("INSERT INTO squares SELECT i, i * i FROM generate_series(0, 999) AS i")
        assert read_sql(dsn, "SELECT * FROM squares", "id").count() == 1000
        list(read_sql(dsn, "SELECT 1"))  # what the driver opens once, and keeps
        yield dsn


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("rows", ["dicts", "columns"])
def test_rows_of_a_database(dsn, rows):
    stream = read_sql(dsn, "SELECT * FROM squares", "id", block_rows=100, rows=rows).shuffle(blocks=3)
    seen = {}
    with DataLoader(stream, batch_size=32, num_workers=2, output="numpy") as loader:
        for batch in loader:
            seen |= dict(zip(batch["id"].tolist(), batch["square"].tolist(), strict=True))
    assert seen == {i: i * i for i in range(1000)}
    assert list(seen) != sorted(seen)
