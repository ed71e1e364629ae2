"""How a table is written as text, and what is in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.sources.csv_types import type_name


class Records(Protocol):
    """A reader of Python's csv."""

    @property
    def line_num(self) -> int: ...

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


@dataclass(frozen=True)
class CsvFormat:
    """How a table is written.

    Attributes:
        separator: one ASCII character.
        quote: one ASCII character; None if quotes mean nothing.
        header: whether the first record of each file has the names of the columns.
        names: the names, instead of those in the header, if there is one. Without both, they are `f0`, `f1`, …
        types: for some columns, or for all: `int`, `float`, `bool` or `str`, or these as names. The others are found in
            the first records of the first file.
        nulls: the texts that stand for null, in all columns. Without them, the empty text does in columns that are not
            of text.
        newlines_in_values: whether newlines may stand in quotes. If so, files of more than one block must be read once
            to find where their records begin; False spares that.

    Raises:
        ValueError: an attribute is not like that.
        TypeError: `types` is no mapping.
    """

    separator: str = ","
    quote: str | None = '"'
    header: bool = True
    names: Sequence[str] | None = None
    types: Mapping[str, Any] | None = None
    nulls: Collection[str] | None = None
    newlines_in_values: bool = True

    def __post_init__(self) -> None:
        for name, character in (("separator", self.separator), ("quote", self.quote)):
            if character is not None and (len(character) != 1 or not character.isascii() or character in "\r\n"):
                raise ValueError(f"{name} must be one ASCII character and no newline, got {character!r}.")
        if self.separator == self.quote:
            raise ValueError(f"separator and quote must differ, got {self.quote!r} for both.")
        _check_types(self.types)
        _check_texts("names", self.names)
        _check_texts("nulls", self.nulls)

    @property
    def has_quoted_newlines(self) -> bool:
        return self.newlines_in_values and self.quote is not None

    @property
    def null_texts(self) -> frozenset[str]:
        return frozenset(("",) if self.nulls is None else self.nulls)

    def records(self, lines: Sequence[str], longest: int) -> Records:
        """The records of some lines, which keep their newlines.

        Args:
            longest: no field has more characters.
        """
        # Python's limit is one for the whole process, and much lower than what a record may be: it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), longest))
        if self.quote is None:
            return csv.reader(lines, delimiter=self.separator, quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self.separator, quotechar=self.quote)


@dataclass(frozen=True, slots=True)
class CsvSchema:
    """The columns of a table: their names, and the type of each."""

    names: tuple[str, ...]
    types: Mapping[str, str]


def _check_types(types: Any) -> None:
    if types is None:
        return
    if not isinstance(types, Mapping):
        raise TypeError(f"types must be a mapping of columns to types, such as {{'id': 'int'}}, got {types!r:.80}.")
    for given in types.values():
        type_name(given)


def _check_texts(name: str, given: Any) -> None:
    if given is None:
        return
    is_list = isinstance(given, Collection) and not isinstance(given, (str, bytes))
    if not is_list or not all(isinstance(text, str) for text in given):
        raise ValueError(f"{name} must be a list of strings, got {given!r:.80}.")


def split_lines(text: str) -> list[str]:
    """The lines of a text with their newlines, which are LF, CRLF or CR."""
    return list(io.StringIO(text, newline=""))
