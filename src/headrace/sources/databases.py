"""SQLite and PostgreSQL, each asked in the same way."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.base.errors import RecordError
from headrace.base.optional import import_extra, is_installed, missing_extra
from headrace.sources.chunks import RecordChunk
from headrace.sources.source import Chunk

Parameters: TypeAlias = tuple[Any, ...] | dict[str, Any]
"""Values for the placeholders of a query, in their order or by their names."""


class Answer(NamedTuple):
    """The names of the columns, and all rows."""

    names: list[str]
    rows: list[tuple[Any, ...]]


class Database(Protocol):
    """A database and its dialect. Picklable: it knows where the database is, and holds no connection.

    Attributes:
        name: of the product.
        location: where it is, for people; without a password.
        tables_query: finds the names of the tables and views that a query can name without further ado.
        takes_names: whether parameters may be given by their names.
    """

    name: str
    location: str
    tables_query: str
    takes_names: bool

    def is_lost(self, error: Exception) -> bool:
        """Whether an error means that the connection failed, rather than that the query is wrong."""
        ...

    def placeholder(self, number: int) -> str:
        """How a query names its parameter `number`, counted from 1."""
        ...

    def type_of(self, column: str) -> str:
        """An expression for the type of a column."""
        ...

    def as_plain(self, column: str) -> str:
        """An expression for the value of a key as a plain value: a number or a string, which it is the same as."""
        ...

    def from_plain(self, value: str, kind: str) -> str:
        """An expression that turns a plain value back into a key of type `kind`."""
        ...

    def own_names(self, query: str, parameters: Parameters, names: list[str]) -> list[str]:
        """What a query itself calls its columns, if it is called `names` what is selected from it."""
        ...

    def ask(self, query: str, parameters: Parameters = ()) -> Answer:
        """Run a query whose answer is small."""
        ...

    def stream(self, query: str, parameters: Parameters = ()) -> Iterator[Chunk]:
        """Run a query and give its rows as they come, a few megabytes at a time."""
        ...


def different_names(names: Iterable[str]) -> list[str]:
    """The names of the columns of a user's query.

    Raises:
        ValueError: two are the same, so that a row could not hold both.
    """
    listed = list(names)
    if len(set(listed)) < len(listed):
        raise ValueError(f"The columns of the query must have different names, got {listed}. Rename them with AS.")
    return listed


_SQLITE_CHUNK_ROWS = 1024
_BUSY_SECONDS = 60.0  # how long a writer is waited for
_SCHEME = "sqlite://"
_RENAMED = re.compile(r".*:[0-9]+", re.DOTALL)  # as is the second of two columns of one name in a subquery


class SQLite:
    """A database in a file, opened read-only.

    Raises:
        ValueError: the database is in the memory of one process.
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
        with self._reporting_damage(), closing(self._connect()) as connection:
            cursor = connection.execute(query, parameters)
            return Answer(_names(cursor), cursor.fetchall())

    def stream(self, query: str, parameters: Parameters = ()) -> Iterator[Chunk]:
        with self._reporting_damage(), closing(self._connect()) as connection:
            cursor = connection.execute(query, parameters)
            names = different_names(_names(cursor))
            while records := cursor.fetchmany(_SQLITE_CHUNK_ROWS):
                yield RecordChunk(records, names)

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        """SQLite's errors about the content of the file as ours, which name it; others, about the query, pass."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if not _DAMAGE.search(str(error)):
                raise
            raise RecordError(f"{self.location} is damaged, or no SQLite database: {error}.") from error

    def _connect(self) -> sqlite3.Connection:
        # The consumer of a stream may go on in another thread than it began in, though never in two at a time.
        uri = f"{Path(self.location).as_uri()}?mode=ro"
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, check_same_thread=False)


def _names(cursor: sqlite3.Cursor) -> list[str]:
    return [column[0] for column in cursor.description or ()]


_DAMAGE = re.compile(
    "malformed database|image is malformed|not a database|decode to UTF-8|disk I/O|unsupported file format|too big"
)

_POSTGRES_CHUNK_ROWS = 1024
_CHUNK_BYTES = 4 << 20
_SIGNS_OF_A_LOST_STREAM = "PQgetCopyData() failed", "FATAL:"  # what is wrong with a query is an "ERROR"
_ADBC = "adbc_driver_postgresql.dbapi"
# Nothing that is read may change the data; and a scan begins where the table does, not where another scan is just now.
_SETTINGS = ("SET default_transaction_read_only = on", "SET synchronize_seqscans = off")


def open_postgres(dsn: str, driver: str | None = None) -> AdbcPostgres | PsycopgPostgres:
    """The database at `dsn`, through ADBC if that and pyarrow are installed, else through psycopg.

    Raises:
        MissingExtraError: neither is installed.
        ValueError: `driver` is not "adbc", "psycopg" or None.
    """
    if driver not in (None, "adbc", "psycopg"):
        raise ValueError(f"`driver` must be 'adbc', 'psycopg' or None, got {driver!r}.")
    if driver == "adbc" or (driver is None and is_installed("adbc_driver_postgresql") and is_installed("pyarrow")):
        return AdbcPostgres(dsn)
    if driver == "psycopg" or is_installed("psycopg"):
        return PsycopgPostgres(dsn)
    raise missing_extra("sql", "Reading from PostgreSQL")


class _Postgres:
    """The dialect. Keys travel as text, which every type of PostgreSQL can be turned into and back without loss."""

    name = "postgresql"
    tables_query = (
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema = ANY (current_schemas(false)) ORDER BY table_name"
    )
    takes_names = False

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.location = _without_password(dsn)

    def placeholder(self, number: int) -> str:
        return f"${number}"

    def type_of(self, column: str) -> str:
        return f"CAST(pg_typeof({column}) AS text)"

    def as_plain(self, column: str) -> str:
        return f"CAST({column} AS text)"

    def from_plain(self, value: str, kind: str) -> str:
        # "character" means char(1), and would cut the value.
        return f"CAST(CAST({value} AS text) AS {'bpchar' if kind == 'character' else kind})"

    def own_names(self, query: str, parameters: Parameters, names: list[str]) -> list[str]:
        return names


class AdbcPostgres(_Postgres):
    """Through ADBC: the rows come as columns, in Arrow's types."""

    def is_lost(self, error: Exception) -> bool:
        if isinstance(error, OSError):  # all that is left of an error in the middle of a stream is its text
            return any(sign in str(error) for sign in _SIGNS_OF_A_LOST_STREAM)
        return isinstance(error, _adbc().OperationalError) and _is_about_connection(error)

    def ask(self, query: str, parameters: Parameters = ()) -> Answer:
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(query, tuple(parameters) or None)
            return Answer([column[0] for column in cursor.description], cursor.fetchall())

    def stream(self, query: str, parameters: Parameters = ()) -> Iterator[Chunk]:
        from headrace.sources.arrow import table_chunk

        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_CHUNK_BYTES)})
            cursor.execute(query, tuple(parameters) or None)
            with closing(cursor.fetch_record_batch()) as batches:
                yield from (table_chunk(batch) for batch in batches if batch.num_rows)

    def _connect(self) -> Any:
        connection = _adbc().connect(self._dsn, autocommit=True)
        with closing(connection.cursor()) as cursor:
            for setting in _SETTINGS:
                cursor.execute(setting)
        return connection


class PsycopgPostgres(_Postgres):
    """Through psycopg: the rows come as Python objects, from a cursor on the server's side."""

    def is_lost(self, error: Exception) -> bool:
        return isinstance(error, _psycopg().OperationalError) and _is_about_connection(error)

    def ask(self, query: str, parameters: Parameters = ()) -> Answer:
        with closing(self._connect()) as connection, _psycopg().RawCursor(connection) as cursor:
            cursor.execute(query, tuple(parameters))
            return Answer([column.name for column in cursor.description], cursor.fetchall())

    def stream(self, query: str, parameters: Parameters = ()) -> Iterator[Chunk]:
        # A cursor on the server's side lives within a transaction.
        with closing(self._connect()) as connection, connection.transaction(), self._cursor(connection) as cursor:
            cursor.execute(query, tuple(parameters), binary=True)
            names = different_names(column.name for column in cursor.description)
            while records := cursor.fetchmany(_POSTGRES_CHUNK_ROWS):
                yield RecordChunk(records, names)

    def _cursor(self, connection: Any) -> Any:
        return _psycopg().RawServerCursor(connection, "headrace")

    def _connect(self) -> Any:
        psycopg = _psycopg()
        connection = psycopg.connect(self._dsn, autocommit=True)
        for setting in _SETTINGS:
            connection.execute(setting)
        psycopg.types.json.set_json_loads(_as_text, connection)  # which is how it comes through ADBC
        return connection


def _adbc() -> Any:
    return import_extra(_ADBC, "sql", "Reading from PostgreSQL through ADBC")


def _psycopg() -> Any:
    import_extra("psycopg.types.json", "psycopg", "Reading from PostgreSQL through psycopg")
    return import_extra("psycopg", "psycopg", "Reading from PostgreSQL through psycopg")


def _as_text(json: str | bytes) -> str:
    return json if isinstance(json, str) else json.decode()


def _is_about_connection(error: Any) -> bool:
    """Whether the server went away, is starting, or has too many guests; an error that it did not send has no code."""
    code = error.sqlstate
    return code is None or code.startswith(("08", "57P", "53300"))


def _without_password(dsn: str) -> str:
    parts = urlsplit(dsn)
    credentials, at, host = parts.netloc.rpartition("@")
    user = credentials.partition(":")[0]
    return urlunsplit((parts.scheme, f"{user}{at}{host}", parts.path, "", ""))
