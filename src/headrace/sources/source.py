"""The source protocol: data split into blocks, each of which can be read alone and from any row on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from headrace.base.errors import RecordError

_EXCERPT_BYTES = 80


class Chunk(ABC):
    """Some consecutive rows, in memory; see `sources/chunks.py` for all kinds."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def slice(self, start: int, stop: int) -> Chunk:
        """The rows [start, stop), without a copy where that is possible."""

    @abstractmethod
    def rows(self) -> Any:
        """The rows as Python objects: strings of a text, dicts of a table."""

    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """The rows as columns: a NumPy array per column of numbers, a list per column of anything else."""

    def lazy_columns(self) -> dict[str, Any]:
        """The same, some of which may be `LazyColumn`s; others may see the same arrays."""
        return self.columns()

    def parts(self) -> Sequence[Chunk]:
        """The chunks that it was put together from."""
        return (self,)


@dataclass(frozen=True, slots=True)
class Block:
    """A part of one file, or of a query, that can be read without the others.

    Attributes:
        path: the file, as `list_files` gave it; for a database, the query.
        start: where it begins, in units that its source knows: bytes, row groups, key values.
        stop: where it ends, exclusive; None for "to the end" (a compressed file, which cannot be cut).
        rows: how many rows it has if none is bad, where known without reading it.
        n_bytes: approximately how many bytes will be read for it; 0 if unknown.
    """

    path: str
    start: Any
    stop: Any
    rows: int | None = None
    n_bytes: int = 0

    def __reduce__(self) -> Any:
        # Every task has some, and what dataclasses do takes much longer.
        return type(self), tuple([getattr(self, name) for name in self.__match_args__])

    def where(self) -> str:
        """Which file, and which part of it, for people."""
        if isinstance(self.start, int) and isinstance(self.stop, int):
            length = self.stop - self.start
            unit = "bytes" if length == self.n_bytes else "rows" if length == self.rows else None
            if unit is not None and length:
                return f"{self.path}, {unit} {self.start} to {self.stop}"
        return self.path


@dataclass(frozen=True, slots=True)
class Stretch(Block):
    """A part of a file that cannot be cut: the records that start in a range of its decoded content.

    Attributes:
        number: how many stretches come before it.
    """

    number: int = 0

    def where(self) -> str:
        return f"{self.path}, decompressed bytes {self.start} to {self.stop}"


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
"""Called for each bad record, which is then skipped."""


def skip_bad(record: BadRecord, on_bad: OnBad | None) -> None:
    """Report a bad record, which is then skipped.

    Raises:
        RecordError: `on_bad` is None.
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
    """Data split into blocks.

    Guarantees: picklable before and after use, and usable after a fork (files and clients are opened where they are
    used); `blocks` is deterministic, and the rows of all blocks in order are the rows of the data, each exactly once.
    """

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order. Reads no data where possible; remembered."""
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
        """Format, schema and whatever else `headrace inspect` shows; plain values."""
        ...
