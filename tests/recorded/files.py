"""The data of the recorded cases: the same bytes on every machine, in many small blocks."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.optional import is_installed
from tests.sources.archives import tar_bytes

FILES = 3
ROWS = 700  # of each file
_WORDS = ("head", "race", "leat", "weir", "mill", "pond", "wheel", "sluice", "gate", "flume", "pier", "ford", "delta")


def words_of(number: int) -> str:
    """A line of a few words, as a function of its number; some lines are empty."""
    n = number * 2654435761 % 2**32 >> 20
    return " ".join(_WORDS[(number * 31 + 7 * i * i + n) % len(_WORDS)] for i in range(n % 9))


def row_of(number: int) -> dict[str, Any]:
    return {"id": number, "score": number * 37 % 1001 / 8, "text": words_of(number)}


def rows_of_file(file: int) -> list[dict[str, Any]]:
    return [row_of(number) for number in range(file * ROWS, (file + 1) * ROWS)]


def stored_gzip(content: bytes) -> bytes:
    """A gzip file of stored blocks: no compressor has a say in its bytes."""
    blocks = [content[i : i + 0xFFFF] for i in range(0, len(content), 0xFFFF)] or [b""]
    body = b"".join(
        struct.pack("<BHH", block is blocks[-1], len(block), 0xFFFF - len(block)) + block for block in blocks
    )
    header = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    return header + body + struct.pack("<II", zlib.crc32(content), len(content))


def write_files(folder: Path) -> Path:
    """Write all data into a folder, which is returned."""
    for file in range(FILES):
        rows = rows_of_file(file)
        lines = "".join(f"{row['text']}\n" for row in rows).encode()
        jsonl = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        table = "id,score,text\n" + "".join('{id},{score},"{text}"\n'.format(**row) for row in rows)
        members = [
            (f"{row['id']:05}.{extension}", content)
            for row in rows[:200]
            for extension, content in (("txt", row["text"].encode()), ("json", json.dumps(row).encode()))
        ]
        (folder / f"lines-{file}.txt").write_bytes(lines)
        (folder / f"lines-{file}.txt.gz").write_bytes(stored_gzip(lines))
        (folder / f"rows-{file}.jsonl").write_bytes(jsonl)
        (folder / f"rows-{file}.jsonl.gz").write_bytes(stored_gzip(jsonl))
        (folder / f"rows-{file}.csv").write_bytes(table.encode())
        tokens = [len(word) for row in rows for word in row["text"].split()]
        (folder / f"tokens-{file}.bin").write_bytes(b"".join(token.to_bytes(2, "little") for token in tokens))
        (folder / f"samples-{file}.tar").write_bytes(tar_bytes(members))
    _write_database(folder / "rows.db")
    if is_installed("pyarrow"):
        _write_arrow(folder)
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))  # states tell it: so they are the same whenever they are recorded
    return folder


def _write_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, score REAL, text TEXT)")
        rows = (row for file in range(FILES) for row in rows_of_file(file))
        connection.executemany("INSERT INTO samples VALUES (:id, :score, :text)", rows)
    connection.close()


def _write_arrow(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in range(FILES):
        table = pa.Table.from_pylist(rows_of_file(file))
        pq.write_table(table, folder / f"rows-{file}.parquet", row_group_size=64)
        with pa.ipc.new_file(folder / f"rows-{file}.arrow", table.schema) as sink:
            sink.write_table(table, max_chunksize=64)


def sequences() -> list[np.ndarray]:
    """Sequences of several lengths, whose items are all different."""
    return [np.arange(100 * i, 100 * i + 5 + i * 7 % 23, dtype=np.int64) for i in range(12)]
