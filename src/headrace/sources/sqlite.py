"""SQLite, with nothing but Python itself."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

from headrace.sources.records import RecordChunk
from headrace.sources.sql_database import Answer, Parameters, different_names

_CHUNK_ROWS = 1024
_BUSY_SECONDS = 60.0  # how long a writer is waited for
_SCHEME = "sqlite://"
_RENAMED = re.compile(r".*:[0-9]+", re.DOTALL)  # as is the second of two columns of one name in a subquery


class SQLite:
    """A database in a file, opened read-only.

    Raises:
        ValueError: the database lies in the memory of one process.
        FileNotFoundError: there is no such file.
    """

    name = "sqlite"
    tables_query = (
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' ORDER BY name"
    )
    takes_names = True

    def __init__(self, dsn: str) -> None:
        path = unquote(dsn.removeprefix(_SCHEME).removeprefix("/")) if dsn.startswith(_SCHEME) else dsn
        if path in ("", ":memory:"):
            raise ValueError(f"The database must be a file, which workers can open too, got {dsn!r}.")
        self.location = str(Path(path).absolute())
        if not Path(self.location).is_file():
            raise FileNotFoundError(f"There is no database {self.location!r}.")

    def is_lost(self, error: Exception) -> bool:
        return False

    def placeholder(self, number: int) -> str:
        return f"?{number}"

    def type_of(self, column: str) -> str:
        return f"typeof({column})"

    def as_plain(self, column: str) -> str:
        return column

    def from_plain(self, value: str, kind: str) -> str:
        return value

    def own_names(self, query: str, parameters: Parameters, names: list[str]) -> list[str]:
        if not any(map(_RENAMED.fullmatch, names)):
            return names
        with closing(self._connect()) as connection:  # which runs the query, but only until its first row
            return _names(connection.execute(query, parameters))

    def ask(self, query: str, parameters: Parameters = ()) -> Answer:
        with closing(self._connect()) as connection:
            cursor = connection.execute(query, parameters)
            return Answer(_names(cursor), cursor.fetchall())

    def stream(self, query: str, parameters: Parameters = ()) -> Iterator[RecordChunk]:
        with closing(self._connect()) as connection:
            cursor = connection.execute(query, parameters)
            names = different_names(_names(cursor))
            while records := cursor.fetchmany(_CHUNK_ROWS):
                yield RecordChunk(names, records)

    def _connect(self) -> sqlite3.Connection:
        # The consumer of a stream may go on in another thread than it began in, though never in two at a time.
        uri = f"{Path(self.location).as_uri()}?mode=ro"
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, check_same_thread=False)


def _names(cursor: sqlite3.Cursor) -> list[str]:
    return [column[0] for column in cursor.description or ()]
