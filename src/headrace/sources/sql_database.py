"""What the SQL source needs of a database; connections are opened where they are used, and closed there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.sources.source import Chunk


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
    """

    name: str
    location: str
    tables_query: str

    def is_lost(self, error: Exception) -> bool:
        """Whether an error tells that the connection was lost, or could not be made; not that the query is wrong."""
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
        """An expression that turns such a plain value into a key of type `kind` again."""
        ...

    def ask(self, query: str, parameters: Sequence[Any] = ()) -> Answer:
        """Run a query whose answer is small."""
        ...

    def stream(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[Chunk]:
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
