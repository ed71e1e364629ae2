"""Tables that grow: the rows of a query whose key is larger than the last one, polled for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.sources.chunks import RecordChunk
from headrace.sources.databases import different_names
from headrace.sources.live import Arrivals, Connector
from headrace.sources.source import Chunk, OnBad
from headrace.sources.sql import Queries, check_parameters, check_query, open_database

_POLL_S = 0.1
_AT_ONCE = 4096  # rows


class TableFollower(Connector):
    """The rows of a query, in the order of a key that grows, for ever.

    Raises:
        ValueError: the query is empty, or the key is not one of its columns.
        TypeError: `parameters` are neither a list nor a mapping, or a mapping for PostgreSQL.
    """

    has_positions = True
    promise = "exactly once by offsets"

    def __init__(
        self,
        dsn: str,
        query: str,
        key: str,
        *,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        driver: str | None = None,
    ) -> None:
        self._database = open_database(dsn, driver)
        values = check_parameters(parameters, takes_names=self._database.takes_names)
        self._queries = Queries(self._database, check_query(query), values)
        self._key = key
        self._names = different_names(self._database.ask(*self._queries.columns()).names)
        if key not in self._names:
            raise ValueError(f"`follow` must be a column of the query, {self._names}, got {key!r}.")
        self.name = f"{self._database.location}: {self._queries.query}, by {key}"

    @property
    def identity(self) -> str:
        return f"{self._queries.query}, by {self._key}"

    def connect(self, positions: Mapping[str, Any]) -> Iterable[Arrivals]:
        return _NewRows(self, positions.get(""))

    def ask_after(self, value: Any) -> tuple[list[tuple[Any, ...]], list[Any]]:
        """The next rows after a key, and their keys."""
        try:
            kind = self._database.ask(*self._queries.types([self._key])).rows[0][0]
            rows = self._database.ask(*self._queries.after(self._key, kind, value, _AT_ONCE)).rows
        except Exception as error:
            if self._database.is_lost(error):
                raise ConnectionError(str(error)) from error
            raise
        return [row[:-1] for row in rows], [row[-1] for row in rows]

    def decode(self, rows: Sequence[Any], where: str, on_bad: OnBad | None) -> Iterator[Chunk]:
        yield RecordChunk(list(rows), self._names)


class _NewRows:
    """Asks for new rows until it is closed."""

    def __init__(self, follower: TableFollower, reached: Any) -> None:
        self._follower = follower
        self._reached = reached
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[Arrivals]:
        while not self._closed.is_set():
            rows, positions = self._follower.ask_after(self._reached)
            if rows:
                self._reached = positions[-1]
                yield Arrivals(rows, positions)
            if len(rows) < _AT_ONCE:
                self._closed.wait(_POLL_S)

    def close(self) -> None:
        self._closed.set()
