"""Rows of SQL queries, read in ranges of a key, or as one."""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.base.errors import ChangedFileError, add_note
from headrace.sources.chunks import skip_rows
from headrace.sources.databases import Answer, Database, Parameters, SQLite, different_names, open_postgres
from headrace.sources.retry import Retries
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

_MOST_SHOWN = 80  # characters of a query

Statement: TypeAlias = tuple[str, Parameters]
"""A query and its parameters."""


@dataclass(frozen=True)
class Queries:
    """Builds statements around a user's query, which stays one unit: whatever it is, it is only selected from."""

    database: Database
    query: str
    parameters: Parameters

    def columns(self) -> Statement:
        """No row, but the names of the columns."""
        return f"SELECT * FROM {self._rows} LIMIT 0", self.parameters

    def types(self, names: Sequence[str]) -> Statement:
        """The type of each column, also if there are no rows."""
        types = ", ".join(self.database.type_of(f"headrace_rows.{quoted(name)}") for name in names)
        return (
            f"SELECT {types} FROM (SELECT 1) AS headrace_one LEFT JOIN {self._rows} ON 1 = 1 LIMIT 1",
            self.parameters,
        )

    def count(self) -> Statement:
        return f"SELECT count(*) FROM {self._rows}", self.parameters

    def count_nulls(self, key: str) -> Statement:
        return f"SELECT count(*) FROM {self._rows} WHERE {quoted(key)} IS NULL", self.parameters

    def borders(self, key: str, block_rows: int) -> Statement:
        """Every `block_rows`-th key, in order: the key, how many rows come before it, and how many there are in all.

        Rows of equal keys are never parted, so a key may come twice.
        """
        numbered = (
            f"SELECT {quoted(key)} AS border, rank() OVER (ORDER BY {quoted(key)}) - 1 AS n_before, "
            f"row_number() OVER (ORDER BY {quoted(key)}) - 1 AS place, count(*) OVER () AS total "
            f"FROM {self._rows} WHERE {quoted(key)} IS NOT NULL"
        )
        plain = self.database.as_plain("border")
        chosen = f"place % {int(block_rows)} = 0"
        return (
            f"SELECT {plain}, n_before, total FROM ({numbered}) AS numbered WHERE {chosen} ORDER BY place",
            self.parameters,
        )

    def whole(self) -> Statement:
        return self.query, self.parameters

    def page(self, order: Sequence[str], offset: int, limit: int) -> Statement:
        return f"SELECT * FROM {self._rows} {_ordered(order)} LIMIT {int(limit)} OFFSET {int(offset)}", self.parameters

    def nulls(self, key: Sequence[str], offset: int, limit: int) -> Statement:
        where = f"WHERE {quoted(key[0])} IS NULL"
        return f"SELECT * FROM {self._rows} {where} {_ordered(key)} {_limited(offset, limit)}", self.parameters

    def key_range(self, key: Sequence[str], kind: str, start: Any, stop: Any, offset: int, limit: int) -> Statement:
        """Rows from key `start` to key `stop`, exclusive, or to the end if that is None."""
        borders = [(">=", start)] if stop is None else [(">=", start), ("<", stop)]
        placeholders, parameters = self._with_values([value for _, value in borders])
        conditions = [
            f"{quoted(key[0])} {comparison} {self.database.from_plain(placeholder, kind)}"
            for (comparison, _), placeholder in zip(borders, placeholders, strict=True)
        ]
        where = f"WHERE {' AND '.join(conditions)}"
        statement = f"SELECT * FROM {self._rows} {where} {_ordered(key)} {_limited(offset, limit)}"
        return statement, parameters

    def after(self, key: str, kind: str, value: Any, limit: int) -> Statement:
        """Rows whose key is larger than a plain value, in its order; the last column is their key as a plain value."""
        [placeholder], parameters = self._with_values([value])
        plain, where = f"{self.database.as_plain(quoted(key))} AS headrace_position", ""
        if value is not None:
            where = f" AND {quoted(key)} > {self.database.from_plain(placeholder, kind)}"
        statement = (
            f"SELECT *, {plain} FROM {self._rows} WHERE {quoted(key)} IS NOT NULL{where} "
            f"ORDER BY {quoted(key)} LIMIT {int(limit)}"
        )
        return statement, self.parameters if value is None else parameters

    def _with_values(self, values: Sequence[Any]) -> tuple[list[str], Parameters]:
        """Placeholders for values of our own, and the user's parameters together with them."""
        if isinstance(self.parameters, dict):
            names = self._free_names(len(values))
            return [f":{name}" for name in names], {**self.parameters, **dict(zip(names, values, strict=True))}
        first = len(self.parameters) + 1
        numbers = range(first, first + len(values))
        return [self.database.placeholder(number) for number in numbers], (*self.parameters, *values)

    def _free_names(self, n: int) -> list[str]:
        """Names for parameters that the user's query does not have."""
        beginning = "headrace_border"
        while beginning in self.query:
            beginning += "_"
        return [f"{beginning}{i}" for i in range(n)]

    @property
    def _rows(self) -> str:
        # On a line of its own, because the query may end in a comment.
        return f"({self.query}\n) AS headrace_rows"


def check_query(query: Any) -> str:
    """A user's query without the semicolon at its end.

    Raises:
        TypeError: it is not a string.
        ValueError: there is nothing in it.
    """
    if not isinstance(query, str):
        raise TypeError(f"`query` must be one SELECT statement, as a string, got {query!r:.80}.")
    statement = query.strip().rstrip(";")
    if not statement.strip():
        raise ValueError(f"`query` must be one SELECT statement, got {query!r}.")
    return statement


def check_parameters(given: Any, *, takes_names: bool) -> Parameters:
    """A user's parameters, in their order or by their names.

    Raises:
        TypeError: they are neither, or have names where the database takes none.
    """
    if isinstance(given, Mapping):
        if not takes_names:
            raise TypeError(
                "`parameters` must be a list of values for PostgreSQL, got a mapping. Write $1, $2, … in the query, "
                "and pass the values in this order."
            )
        return dict(given)
    if isinstance(given, (str, bytes, bytearray, Set)) or not isinstance(given, Iterable):
        raise TypeError(
            f"`parameters` must be a list of values, or a mapping of names to values, got {given!r:.80}. "
            "Put a single value into a list."
        )
    return tuple(given)


def quoted(name: str) -> str:
    """An identifier that means exactly this name."""
    return '"' + name.replace('"', '""') + '"'


def _ordered(names: Sequence[str]) -> str:
    return f"ORDER BY {', '.join(map(quoted, names))}"


def _limited(offset: int, limit: int) -> str:
    return f"LIMIT {int(limit)} OFFSET {int(offset)}"


BLOCK_ROWS = 32_768
_SHOWN_CHARACTERS = 300  # of a query that failed


@dataclass(frozen=True, slots=True)
class _Listing:
    """What was learnt from the database once: the type of each column, and the blocks."""

    types: dict[str, str]
    blocks: tuple[Block, ...]


class SqlSource:
    """The rows of a query against SQLite or PostgreSQL.

    With a `key`, blocks are ranges of it, of `block_rows` rows each, found in one pass by the database; rows whose key
    is NULL are a block of their own, the last one. With `order_by`, blocks are pages of the query in that order; each
    page costs the database all pages before it. With neither, the query is one block.

    Guarantees: connections are opened where they are used, and closed there; nothing is written, and values are never
    pasted into SQL. If the connection is lost in the middle of a block, reading goes on with the next row. The rows of
    a block are in one order if `key`, or `order_by`, has no two rows that are equal; without either, the order is the
    database's own.

    Args:
        dsn: `postgresql://…`, `sqlite:///…`, or the path of an SQLite database.
        key: a column that can be ordered, or several: the first is cut into ranges, the others order its equal values.
        parameters: values for the placeholders in the query: a list for `?` in SQLite, or `$1`, `$2`, … in PostgreSQL;
            in SQLite also a mapping for names: `{"most": 20}` for `:most`, `@most` or `$most`.
        driver: for PostgreSQL: "adbc" or "psycopg"; None for the first of them that is installed.

    Raises:
        ValueError: the arguments exclude each other, the query is empty, or a column is not one of the query.
        TypeError: `parameters` are neither a list nor a mapping, or a mapping for PostgreSQL.
        MissingExtraError: there is no driver for PostgreSQL.
    """

    def __init__(
        self,
        dsn: str,
        query: str,
        key: str | Sequence[str] | None = None,
        *,
        order_by: str | Sequence[str] | None = None,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        block_rows: int = BLOCK_ROWS,
        driver: str | None = None,
        retries: Retries | None = None,
    ) -> None:
        if key is not None and order_by is not None:
            raise ValueError("`key` and `order_by` exclude each other: pass the one whose ranges are to be the blocks.")
        if block_rows < 1:
            raise ValueError(f"`block_rows` must be at least 1, got {block_rows}.")
        self._database = open_database(dsn, driver)
        values = check_parameters(parameters, takes_names=self._database.takes_names)
        self._queries = Queries(self._database, check_query(query), values)
        self._key = _names(key)
        self._order_by = _names(order_by)
        self._block_rows = block_rows
        self._retries = retries or Retries()
        self._known: _Listing | None = None

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order of the key; asks the database once.

        Raises:
            ValueError: a column is not one of the query, or two have the same name.
            ChangedFileError: the rows changed while they were counted.
        """
        return self._listing.blocks

    def count(self) -> int:
        """How many rows there are now."""
        return int(self._ask(self._queries.count()).rows[0][0])

    def versions(self) -> list[FileVersion]:
        """One entry, whose version changes with the columns and with the borders of the blocks."""
        listing = self._listing
        borders = [(block.start, block.rows) for block in listing.blocks]
        digest = hashlib.sha256(json.dumps([list(listing.types), borders], default=repr).encode())
        return [FileVersion(f"{self._database.location}: {self._queries.query}", None, digest.hexdigest()[:16])]

    def shown(self) -> str:
        """As it would be written, without password and parameters."""
        query = " ".join(self._queries.query.split())
        query = query if len(query) <= _MOST_SHOWN else f"{query[: _MOST_SHOWN - 1]}…"
        key = f", key={', '.join(self._key)!r}" if self._key else ""
        return f"read_sql({self._database.location!r}, {query!r}{key})"

    def describe(self) -> dict[str, Any]:
        listing = self._listing
        return {
            "format": self._database.name,
            "location": self._database.location,
            "query": self._queries.query,
            "key": list(self._key) or None,
            "order_by": list(self._order_by) or None,
            "columns": dict(listing.types),
            "blocks": len(listing.blocks),
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on, in chunks of at most a few megabytes.

        Raises:
            ChangedFileError: the block has more or fewer rows than when it was listed.
        """
        reached, delays = first_row, self._retries.delays()
        while True:
            try:
                for chunk in self._stream(block, reached):
                    reached, delays = reached + len(chunk), self._retries.delays()
                    yield chunk
                break
            except Exception as error:
                delay_s = next(delays) if self._database.is_lost(error) else None
                if delay_s is None:
                    self._tell_query(error)
                    raise
                time.sleep(delay_s)
        self._check_count(block, reached, first_row)

    def _stream(self, block: Block, first_row: int) -> Iterator[Chunk]:
        if block.rows is None:
            return skip_rows(self._database.stream(*self._queries.whole()), first_row)
        if first_row >= block.rows:
            return iter(())
        return self._database.stream(*self._statement(block, first_row))

    def _check_count(self, block: Block, reached: int, first_row: int) -> None:
        if block.rows is not None and reached != max(block.rows, first_row):
            raise ChangedFileError(
                f"The query had {block.rows} rows from {block.start!r} to {block.stop!r} when it was listed, "
                f"and has {'more' if reached > block.rows else reached} now. Read data that does not change."
            )

    def _statement(self, block: Block, first_row: int) -> Statement:
        assert block.rows is not None
        if self._order_by:
            return self._queries.page(self._order_by, block.start + first_row, block.rows - first_row)
        # One row more, to notice what was added; after the last key, where logs grow, that is no change.
        limit = block.rows - first_row + (block.stop is not None or block.start is None)
        if block.start is None:
            return self._queries.nulls(self._key, first_row, limit)
        kind = self._listing.types[self._key[0]]
        return self._queries.key_range(self._key, kind, block.start, block.stop, first_row, limit)

    @property
    def _listing(self) -> _Listing:
        if self._known is None:
            types = self._types()
            self._known = _Listing(types, tuple(self._cut()))
        return self._known

    def _types(self) -> dict[str, str]:
        names = different_names(self._ask(self._queries.columns()).names)
        if self._key or self._order_by:
            self._check_renamed(names)
        if unknown := [name for name in (*self._key, *self._order_by) if name not in names]:
            raise ValueError(f"`key` and `order_by` must be columns of the query, {names}, got {unknown}.")
        return dict(zip(names, self._ask(self._queries.types(names)).rows[0], strict=True))

    def _check_renamed(self, names: list[str]) -> None:
        """Refuse columns whose names the database changes where the query is only selected from."""
        own = self._database.own_names(*self._queries.whole(), names)
        if own != names:
            raise ValueError(
                f"The columns of the query must have different names, also if case does not count, got {own}. "
                "Rename them with AS."
            )

    def _cut(self) -> Iterator[Block]:
        query = self._queries.query
        if self._key:
            yield from self._cut_by_key()
        elif self._order_by:
            total = self.count()
            for start in range(0, total, self._block_rows):
                stop = min(start + self._block_rows, total)
                yield Block(query, start, stop, stop - start)
        else:
            yield Block(query, None, None)

    def _cut_by_key(self) -> Iterator[Block]:
        query, key = self._queries.query, self._key[0]
        found = self._ask(self._queries.borders(key, self._block_rows)).rows
        borders = [next(same) for _, same in itertools.groupby(found, key=operator.itemgetter(1))]
        starts = [(start, n_before) for start, n_before, _ in borders]
        ends = [*starts[1:], (None, borders[0][2])] if borders else []
        for (start, n_before), (stop, n_until) in zip(starts, ends, strict=True):
            yield Block(query, start, stop, n_until - n_before)
        if n_nulls := self._ask(self._queries.count_nulls(key)).rows[0][0]:
            yield Block(query, None, None, n_nulls)

    def _ask(self, statement: Statement) -> Answer:
        try:
            return self._database.ask(*statement)
        except Exception as error:
            self._tell_query(error)
            raise

    def _tell_query(self, error: Exception) -> None:
        """Note the query on an error that came of it, and not of the connection."""
        if not self._database.is_lost(error):
            query = self._queries.query
            shown = query if len(query) <= _SHOWN_CHARACTERS else query[:_SHOWN_CHARACTERS] + "…"
            add_note(error, f"This came of the query {shown!r}, which must be one SELECT statement.")


def open_database(dsn: str, driver: str | None = None) -> Database:
    """The database at an address, or in a file.

    Raises:
        ValueError: the address is of another kind of database.
        FileNotFoundError: there is no such file.
        MissingExtraError: there is no driver for PostgreSQL.
    """
    if dsn.startswith(("postgresql://", "postgres://")):
        return open_postgres(dsn, driver)
    scheme, separator, _ = dsn.partition("://")
    if separator and scheme != "sqlite":
        raise ValueError(f"`dsn` must begin with 'postgresql://' or 'sqlite:///', or be a path, got {scheme}://….")
    return SQLite(dsn)


def _names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(columns)
