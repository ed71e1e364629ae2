"""Streams from stores on the network: worker processes read an object store and a database, each row once."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import DataLoader, TokenDataset, read_sql, read_text, read_tokens
from tests.sources.postgres import running_server
from tests.sources.servers import s3_server
from tests.sources.token_writing import cut_rows, write_megatron

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
def remote_tokens(s3_server, tmp_path_factory):
    """Megatron's files in S3, the options to read them, and their documents; once read here."""
    s3fs = pytest.importorskip("s3fs")
    folder = tmp_path_factory.mktemp("tokens")
    documents = write_megatron(folder / "data", [list(range(10 * n, 10 * n + n % 17)) for n in range(200)])
    options = {"client_kwargs": {"endpoint_url": s3_server.direct_url}}
    store = s3fs.S3FileSystem(**options)
    store.mkdir("tokens")
    for path in folder.iterdir():
        store.pipe(f"tokens/{path.name}", path.read_bytes())
    assert len(read_tokens("s3://tokens/data", 8, storage_options=options)) > 100
    return options, documents


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("workers", [0, 2])
def test_tokens_of_an_object_store_are_read_by_ranges(remote_tokens, s3_server, workers):
    options, documents = remote_tokens
    tokens = [token for document in documents for token in document]
    stream = read_tokens("s3://tokens/data", 8, block_bytes=700, storage_options=options)
    assert len(stream.recipe.source.blocks()) > 5
    with DataLoader(stream, batch_size=16, num_workers=workers) as loader:
        rows = [row for batch in loader for row in batch["tokens"].tolist()]
    assert rows == [row["tokens"] for row in cut_rows(tokens, 8)]
    with DataLoader(stream.shuffle(blocks=3), batch_size=16, num_workers=workers, seed=1) as loader:
        shuffled = [row for batch in loader for row in batch["tokens"].tolist()]
    assert shuffled != rows
    assert sorted(shuffled) == sorted(rows)
    dataset = TokenDataset("s3://tokens/data", 8, documents=True, storage_options=options)
    assert dataset.take(np.array([7, 3]))["tokens"].tolist() == [rows[7], rows[3]]
    whole = read_tokens("s3://tokens/data.idx", None, storage_options=options)
    assert [row.tolist() for row in whole] == documents


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
