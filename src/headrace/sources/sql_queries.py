"""The SQL that cuts a query into blocks and reads them. Names are quoted; values are always parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.sources.sql_database import Database, Parameters

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
        TypeError: it is no string.
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
