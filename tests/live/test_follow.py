"""Files, folders and tables that grow while they are read."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from headrace import DataLoader, read_csv, read_jsonl, read_parquet, read_sql, read_text
from tests.sources.postgres import running_server

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def append(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write("\n".join(lines) + end)


def take(rows: Iterator[Any], n: int) -> list[Any]:
    return [next(rows) for _ in range(n)]


def opened(stream: Any, num_workers: int = 0, **options: Any) -> DataLoader:
    return DataLoader(stream, batch_size=None, num_workers=num_workers, **options)


@WORKERS
def test_new_lines_come_as_they_are_written(tmp_path: Path, num_workers: int) -> None:
    path = tmp_path / "app.log"
    append(path, "one", "two")
    with opened(read_text(path, follow=True), num_workers) as loader:
        rows = iter(loader)
        assert take(rows, 2) == ["one", "two"]
        append(path, "three", "fo", end="")
        assert next(rows) == "three"
        append(path, "ur", "fünf\r")
        assert take(rows, 2) == ["four", "fünf"]


@WORKERS
def test_a_rotated_file_is_read_to_its_end(tmp_path: Path, num_workers: int) -> None:
    path, old = tmp_path / "app.log", tmp_path / "app.log.1"
    append(path, "one")
    with opened(read_text(path, follow=True), num_workers) as loader:
        rows = iter(loader)
        assert next(rows) == "one"
        append(path, "two")
        path.rename(old)
        append(old, "three")
        append(path, "four")
        assert sorted(take(rows, 3)) == ["four", "three", "two"]
        append(path, "five")
        assert next(rows) == "five"


def test_a_file_that_is_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    append(path, "one", "two", "three")
    with opened(read_text(path, follow=True)) as loader:
        rows = iter(loader)
        assert take(rows, 3) == ["one", "two", "three"]
        path.write_text("new\n")
        assert next(rows) == "new"


@WORKERS
def test_resumes_where_it_was_also_if_the_file_was_rotated_meanwhile(tmp_path: Path, num_workers: int) -> None:
    path = tmp_path / "app.jsonl"
    append(path, *(f'{{"n": {n}}}' for n in range(10)))
    stream = read_jsonl(path, follow=True)
    with DataLoader(stream, batch_size=3, num_workers=num_workers) as loader:
        rows = iter(loader)
        seen = [n for _ in range(2) for n in next(rows)["n"].tolist()]
        state = loader.state_dict()
        del rows
    append(path, '{"n": 10}')
    path.rename(tmp_path / "app.jsonl.1")
    append(path, '{"n": 11}')
    with DataLoader(stream, batch_size=3, num_workers=2 - num_workers) as again:
        again.load_state_dict(state)
        rows = iter(again)
        seen += [n for _ in range(2) for n in next(rows)["n"].tolist()]
        del rows
    assert seen == list(range(12))


@WORKERS
def test_new_files_of_a_folder(tmp_path: Path, num_workers: int) -> None:
    append(tmp_path / "a.txt", "a1", "a2")
    with opened(read_text(tmp_path, words=True, follow=True), num_workers) as loader:
        rows = iter(loader)
        assert take(rows, 2) == ["a1", "a2"]
        append(tmp_path / "b.txt", "b1 b2")
        append(tmp_path / ".hidden", "no")
        assert take(rows, 2) == ["b1", "b2"]
        append(tmp_path / "a.txt", "a3")
        assert next(rows) == "a3"


def settle(path: Path) -> None:
    """As if it had been written a while ago."""
    os.utime(path, (os.stat(path).st_atime, os.stat(path).st_mtime - 60))


@WORKERS
def test_new_whole_files_of_a_table(tmp_path: Path, num_workers: int) -> None:
    def write(number: int) -> None:
        path = tmp_path / f".{number}.csv"
        path.write_text("n,name\n" + "".join(f"{number * 10 + i},row\n" for i in range(4)))
        settle(path)
        path.rename(tmp_path / f"{number}.csv")

    write(0)
    stream = read_csv(tmp_path / "*.csv", follow=True)
    with DataLoader(stream, batch_size=2, num_workers=num_workers) as loader:
        batches = iter(loader)
        seen = next(batches)["n"].tolist()
        state = loader.state_dict()
        write(1)
        assert [n for _ in range(3) for n in next(batches)["n"].tolist()] == [2, 3, 10, 11, 12, 13][:6]
        del batches
    with DataLoader(stream, batch_size=2, num_workers=num_workers) as again:
        again.load_state_dict(state)
        batches = iter(again)
        seen += [n for _ in range(3) for n in next(batches)["n"].tolist()]
        del batches
    assert seen == [0, 1, 2, 3, 10, 11, 12, 13]


def test_new_parquet_files_in_columns(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for number in range(2):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pyarrow.table({"n": [number * 2, number * 2 + 1]}), path)
        settle(path)
    stream = read_parquet(tmp_path, rows="columns", follow=True)
    with DataLoader(stream, batch_size=4, num_workers=2) as loader:
        batches = iter(loader)
        assert next(batches)["n"].tolist() == [0, 1, 2, 3]
        del batches


def test_a_file_that_is_still_written_is_not_read_yet(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("n\n1\n")
    settled = tmp_path / "old.csv"
    settled.write_text("n\n2\n")
    settle(settled)
    with opened(read_csv(tmp_path, follow=True)) as loader:
        rows = iter(loader)
        assert take(rows, 2) == [{"n": 2}, {"n": 1}]


def test_compressed_files_cannot_grow(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"")
    with opened(read_text(tmp_path, follow=True)) as loader, pytest.raises(ValueError, match="compressed"):
        next(iter(loader))


@WORKERS
def test_rows_of_a_table_that_grows(tmp_path: Path, num_workers: int) -> None:
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE clicks (id INTEGER PRIMARY KEY, name TEXT)")

        def insert(first: int, stop: int) -> None:
            database.executemany("INSERT INTO clicks VALUES (?, ?)", [(n, f"row {n}") for n in range(first, stop)])
            database.commit()

        insert(0, 5)
        stream = read_sql(path, "SELECT * FROM clicks", follow="id")
        with DataLoader(stream, batch_size=2, num_workers=num_workers) as loader:
            batches = iter(loader)
            seen = [n for _ in range(2) for n in next(batches)["id"].tolist()]
            state = loader.state_dict()
            insert(5, 9)
            assert next(batches)["name"] == ["row 4", "row 5"]
            del batches
        with DataLoader(stream, batch_size=2, num_workers=num_workers) as again:
            again.load_state_dict(state)
            batches = iter(again)
            seen += [n for _ in range(2) for n in next(batches)["id"].tolist()]
            insert(9, 12)
            seen += [n for _ in range(2) for n in next(batches)["id"].tolist()]
            del batches
    assert seen == list(range(12))


def test_follow_of_a_table_needs_one_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE clicks (id INTEGER PRIMARY KEY)")
    with pytest.raises(ValueError, match=r"\['id'\], got 'no'"):
        read_sql(path, "SELECT * FROM clicks", follow="no")
    with pytest.raises(ValueError, match="takes the place"):
        read_sql(path, "SELECT * FROM clicks", "id", follow="id")


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    pytest.importorskip("psycopg")
    pytest.importorskip("adbc_driver_postgresql")
    with running_server() as dsn:
        list(read_sql(dsn, "SELECT 1"))  # what the driver opens once, and keeps
        yield dsn


@pytest.mark.parametrize("driver", ["adbc", "psycopg"])
def test_rows_of_a_postgresql_table_by_their_times(dsn: str, driver: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS clicks")
        database.execute("CREATE TABLE clicks (at timestamptz, n int)")

        def insert(first: int, stop: int) -> None:
            for n in range(first, stop):
                database.execute(
                    "INSERT INTO clicks VALUES ('2026-01-01'::timestamptz + %s * '1 us'::interval, %s)", (n, n)
                )

        insert(0, 6)
        stream = read_sql(dsn, "SELECT at, n FROM clicks WHERE n <> $1", follow="at", parameters=[3], driver=driver)
        stream = stream.map(itemgetter("n"))
        with DataLoader(stream, batch_size=2) as loader:
            batches = iter(loader)
            seen = next(batches).tolist()
            state = loader.state_dict()
            del batches
        insert(6, 8)
        with DataLoader(stream, batch_size=2) as again:
            again.load_state_dict(state)
            batches = iter(again)
            seen += next(batches).tolist()
            insert(8, 11)
            seen += next(batches).tolist() + next(batches).tolist()
            del batches
    assert seen == [0, 1, 2, 4, 5, 6, 7, 8]
