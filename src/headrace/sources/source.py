"""What a source is: data cut into blocks, each of which can be read alone and from any row on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from headrace.base.errors import RecordError

_EXCERPT_BYTES = 80


class Chunk(Protocol):
    """Some consecutive rows of a block, in memory."""

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> Chunk:
        """The rows [start, stop), without a copy where that is possible."""
        ...

    def rows(self) -> list[Any]:
        """The rows as Python objects: strings of a text, dicts of a table."""
        ...

    def columns(self) -> dict[str, Any]:
        """The rows as columns: a NumPy array per column of numbers, a list per column of anything else."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """A part of one file, or of a query, that can be read without the others.

    Attributes:
        path: the file, as `list_files` gave it; for a database, the query.
        start: where it begins, in units that its source knows: bytes, row groups, key values.
        stop: where it ends, exclusive; None for "to the end" (a compressed file, which cannot be cut).
        rows: how many rows it has if none is bad, where that is known without reading it.
        n_bytes: how many bytes will be read for it, about; 0 if nobody knows.
    """

    path: str
    start: Any
    stop: Any
    rows: int | None = None
    n_bytes: int = 0

    def __reduce__(self) -> Any:
        # Every task has some, and what dataclasses do takes much longer.
        return type(self), tuple([getattr(self, name) for name in self.__match_args__])


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that could not be read.

    Attributes:
        where: path, block and line (or row, or member), for people.
        raw: the record as it was found, cut to a few kilobytes.
        error: the type and text of what is wrong with it.
    """

    where: str
    raw: bytes
    error: str

    def __str__(self) -> str:
        excerpt = repr(self.raw[:_EXCERPT_BYTES]) + ("…" if len(self.raw) > _EXCERPT_BYTES else "")
        return f"{self.where}: {self.error}. The record is {excerpt}."


OnBad: TypeAlias = Callable[[BadRecord], None]
"""Hears of bad records, which are then left out."""


def leave_out(record: BadRecord, on_bad: OnBad | None) -> None:
    """Tell of a bad record that is then left out.

    Raises:
        RecordError: nobody listens.
    """
    if on_bad is None:
        raise RecordError(str(record))
    on_bad(record)


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file as it was when it was listed, so that a change can be noticed: plain values, for the state of a loader."""

    path: str
    size: int | None
    version: str | None  # an etag, or the time of the last change


class Source(Protocol):
    """Data cut into blocks.

    Guarantees: picklable before and after use, and usable after a fork (files and clients are opened where they are
    used); `blocks` is deterministic, and the rows of all blocks, one after the other, are the rows of the data in their
    natural order, each exactly once.
    """

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order. Reads no data where that is possible; remembered, so that asking again is free."""
        ...

    def versions(self) -> list[FileVersion]:
        """The files as they were when they were listed."""
        ...

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on, in chunks of at most a few megabytes.

        Rows are counted without bad ones.

        Raises:
            RecordError: a record is bad, and `on_bad` is None.
            ChangedFileError: the file is not the one that was listed.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Format, schema and whatever else `headrace inspect` is to show; plain values."""
        ...
