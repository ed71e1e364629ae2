"""The same small table in every format that a stream can be read from, and what is done to its rows."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace
from headrace import Stream, read_csv, read_jsonl, read_parquet, read_sql, read_tar, read_text
from headrace.base.optional import is_installed
from tests.sources.archives import tar_bytes

if is_installed("pyarrow"):
    import pyarrow as pa
    import pyarrow.parquet as pq

Files = list[list[str]]
"""The words of each file; the rows are numbered over all files."""


class Table(NamedTuple):
    """A stream of a table, and all of its rows in their natural order."""

    stream: Stream
    rows: list[Any]


def numbered(files: Files) -> list[list[tuple[int, str]]]:
    numbers = iter(range(sum(map(len, files))))
    return [[(next(numbers), word) for word in words] for words in files]


def as_dicts(files: Files) -> list[dict[str, Any]]:
    return [{"id": number, "word": word} for rows in numbered(files) for number, word in rows]


def write_each(folder: Path, files: Files, write: Callable[[Path, list[tuple[int, str]]], None]) -> list[Path]:
    """Write each file, in its own way."""
    paths = [folder / f"part-{i}" for i in range(len(files))]
    for path, rows in zip(paths, numbered(files), strict=True):
        write(path, rows)
    return paths


def text(folder: Path, files: Files, block: int) -> Table:
    def write(path: Path, rows: list[tuple[int, str]]) -> None:
        path.write_bytes("".join(f"{word}\n" for _, word in rows).encode())

    paths = write_each(folder, files, write)
    return Table(read_text(paths, block_bytes=block), [word for words in files for word in words])


def csv_dicts(folder: Path, files: Files, block: int, rows: Any = "dicts") -> Table:
    def write(path: Path, rows: list[tuple[int, str]]) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_NONNUMERIC).writerows([("id", "word"), *rows])

    paths = write_each(folder, files, write)
    types = {"id": "int", "word": "str"}
    return Table(read_csv(paths, block_bytes=block, types=types, rows=rows), as_dicts(files))


def csv_columns(folder: Path, files: Files, block: int) -> Table:
    return csv_dicts(folder, files, block, "columns")


def jsonl(folder: Path, files: Files, block: int) -> Table:
    def write(path: Path, rows: list[tuple[int, str]]) -> None:
        path.write_text("".join(json.dumps({"id": number, "word": word}) + "\n" for number, word in rows))

    return Table(read_jsonl(write_each(folder, files, write), block_bytes=block), as_dicts(files))


def parquet(folder: Path, files: Files, block: int, rows: Any = "dicts") -> Table:
    def write(path: Path, rows: list[tuple[int, str]]) -> None:
        columns = {
            "id": pa.array([n for n, _ in rows], pa.int64()),
            "word": pa.array([w for _, w in rows], pa.string()),
        }
        pq.write_table(pa.table(columns), path, row_group_size=3)

    paths = write_each(folder, files, write)
    return Table(read_parquet(paths, block_bytes=block, rows=rows), as_dicts(files))


def parquet_columns(folder: Path, files: Files, block: int) -> Table:
    return parquet(folder, files, block, "columns")


def tar(folder: Path, files: Files, block: int) -> Table:
    def write(path: Path, rows: list[tuple[int, str]]) -> None:
        path.write_bytes(tar_bytes([(f"{number:04}.{kind}", w.encode()) for number, w in rows for kind in ("a", "b")]))

    stream = read_tar(write_each(folder, files, write), block_bytes=block, decode=False)
    rows = [{"__key__": f"{n:04}", "a": w.encode(), "b": w.encode()} for part in numbered(files) for n, w in part]
    return Table(stream, rows)


def sqlite(folder: Path, files: Files, block: int) -> Table:
    path = folder / "table.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [row for rows in numbered(files) for row in rows])
    connection.close()
    stream = read_sql(str(path), "SELECT * FROM t", "id", block_rows=1 + block // 20)
    return Table(stream, as_dicts(files))


ARROW = pytest.mark.skipif(not is_installed("pyarrow"), reason="needs pyarrow")
OF_ROWS = [text, csv_dicts, jsonl, pytest.param(parquet, marks=ARROW), tar, sqlite]
OF_COLUMNS = [csv_columns, pytest.param(parquet_columns, marks=ARROW)]
ALL_FORMATS = [*OF_ROWS, *OF_COLUMNS]


def tagged(row: Any) -> Any:
    return ("seen", row)


def is_kept(row: Any) -> bool:
    return len(repr(row)) % 3 > 0


def twice(row: Any) -> list[Any]:
    return [row, row]


def noisy(row: Any) -> Any:
    return (row, float(headrace.rng().random()))


STEPS: dict[str, Callable[[Stream], Stream]] = {
    "map": lambda stream: stream.map(tagged),
    "filter": lambda stream: stream.filter(is_kept),
    "flat_map": lambda stream: stream.flat_map(twice),
    "noise": lambda stream: stream.map(noisy),
}
MODELS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "map": lambda rows: [tagged(row) for row in rows],
    "filter": lambda rows: [row for row in rows if is_kept(row)],
    "flat_map": lambda rows: [one for row in rows for one in twice(row)],
}


def apply_steps(stream: Stream, steps: list[Any]) -> Stream:
    """The stream with these steps: names, or ("take" or "skip", number)."""
    for step in steps:
        stream = STEPS[step](stream) if isinstance(step, str) else getattr(stream, step[0])(step[1])
    return stream


def expected_rows(rows: list[Any], steps: list[Any]) -> list[Any]:
    """What a list of rows becomes."""
    for step in steps:
        if isinstance(step, str):
            rows = MODELS[step](rows)
        else:
            rows = rows[: step[1]] if step[0] == "take" else rows[step[1] :]
    return rows
