"""What the SQL source needs of a database; connections are opened where they are used, and closed there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

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
