"""Rows of a database as a stream: the query is read in parts, by several workers, each row once.

The same works with PostgreSQL: `read_sql("postgresql://user@host/database", ...)`. Data on a server is read with
`read_text("https://...")` or `read_parquet("s3://...")`, and so on.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from headrace import DataLoader, read_sql

QUERY = "SELECT id, celsius FROM readings WHERE celsius > 20"


def fill(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE readings (id INTEGER PRIMARY KEY, celsius REAL)")
        connection.executemany("INSERT INTO readings VALUES (?, ?)", ((i, i % 50) for i in range(10_000)))


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sensors.db")
        fill(path)
        readings = read_sql(str(path), QUERY, key="id", block_rows=500, rows="columns")
        with DataLoader(readings, batch_size=4, num_workers=2, output="numpy") as loader:
            first = next(iter(loader))
            print("The first batch:", first["id"].tolist(), first["celsius"].tolist())
            seen = [key for batch in loader for key in batch["id"].tolist()]
        print("Rows, and how many of them are different:", len(seen), len(set(seen)))
        print("In order:", seen == sorted(seen))


if __name__ == "__main__":
    main()
