"""What is done to the rows of a window, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Any, NamedTuple, Protocol, TypeAlias

from headrace.sources.chunks import ColumnChunk, ObjectChunk
from headrace.sources.source import Chunk
from headrace.streams.concurrency import EventLoops, RowThreads
from headrace.streams.rows import own_columns

OnBadRow: TypeAlias = Callable[[int, Any, Exception], None]
"""Hears of a row at which a step raised, and of its number; what it does not raise itself is left out."""


class BadRow(NamedTuple):
    """A row that was left out: what `loader.errors` of a stream have as keys.

    Attributes:
        where: file, block and row, for people.
        raw: the beginning of the record or row, as text.
    """

    where: str
    raw: str = ""

    def __repr__(self) -> str:
        return self.where


class Step(Protocol):
    """Makes rows of rows. A window goes through each step as a whole."""

    @property
    def keeps_count(self) -> bool:
        """Whether there are as many rows afterwards as before, if none raises."""
        ...

    @property
    def is_by_row(self) -> bool:
        """Whether what becomes of a row does not depend on the others."""
        ...

    def apply(self, rows: Chunk, on_bad: OnBadRow) -> Chunk: ...


@dataclass(frozen=True)
class Map:
    fn: Callable[[Any], Any]
    keeps_count = True
    is_by_row = True

    def apply(self, rows: Chunk, on_bad: OnBadRow) -> Chunk:
        return ObjectChunk(_each(self.fn, rows.rows(), on_bad)[1])


@dataclass(frozen=True)
class MapAtOnce(Map):
    """Makes several rows at a time: in threads, or as coroutines, if the function is one.

    Attributes:
        at_once: how many.
    """

    at_once: int = 1
    loops: EventLoops | None = field(default=None, compare=False, repr=False)
    signature = "Map"

    @property
    def fewest_rows(self) -> int:
        """How many rows it should get at a time: some for each thread, which do not all take the same time."""
        return 4 * self.at_once

    def open(self) -> RowThreads | None:
        """What `apply` needs for the rows of a window, if anything."""
        return RowThreads(self.at_once) if self.loops is None else None

    def apply(self, rows: Chunk, on_bad: OnBadRow, first: int = 0, threads: RowThreads | None = None) -> Chunk:
        objects = rows.rows()
        if self.loops is not None:
            made = self.loops.apply(self.fn, objects, first, self.at_once)
        elif threads is not None:
            made = threads.apply(self.fn, objects)
        else:
            threads = RowThreads(self.at_once)
            try:
                made = threads.apply(self.fn, objects)
            finally:
                threads.close()
        for index, one in enumerate(made):
            if isinstance(one.error, StopIteration):  # as `_each` has it
                on_bad(index, objects[index], RuntimeError("A function of a stream raised StopIteration."))
            elif one.error is not None:
                on_bad(index, objects[index], one.error)
        return ObjectChunk([one.value for one in made if one.error is None])


@dataclass(frozen=True)
class Filter:
    fn: Callable[[Any], Any]
    keeps_count = False
    is_by_row = True

    def apply(self, rows: Chunk, on_bad: OnBadRow) -> Chunk:
        return ObjectChunk(list(compress(*_each(self.fn, rows.rows(), on_bad))))


@dataclass(frozen=True)
class FlatMap:
    fn: Callable[[Any], Iterable[Any]]
    keeps_count = False
    is_by_row = True

    def apply(self, rows: Chunk, on_bad: OnBadRow) -> Chunk:
        # A generator raises while it is gone through, so that is done here, row by row.
        _, made = _each(lambda row: list(self.fn(row)), rows.rows(), on_bad)
        return ObjectChunk(list(chain.from_iterable(made)))


@dataclass(frozen=True)
class MapBatches:
    """Applies a function to columns, so many rows at a time; the last batch of a window is smaller."""

    fn: Callable[[dict[str, Any]], dict[str, Any]]
    size: int
    keeps_count = False
    is_by_row = False

    def apply(self, rows: Chunk, on_bad: OnBadRow) -> Chunk:
        parts = []
        for start in range(0, len(rows), self.size):
            batch = own_columns(rows.slice(start, min(start + self.size, len(rows))).lazy_columns())
            try:
                parts.append(_checked_columns(self.fn(batch)))
            except Exception as error:  # noqa: BLE001 (whatever the user's function raises)
                on_bad(start, batch, error)
        return ColumnChunk.joined(parts)


def _checked_columns(made: Any) -> Mapping[str, Any]:
    if not hasattr(made, "keys"):  # as dict() asks: a data frame has them, too
        raise TypeError(
            f"The function of map_batches() must return a dict of columns, got {type(made).__name__}. To make one row "
            "of each row, use map()."
        )
    columns: Mapping[str, Any] = made
    return columns


def _each(fn: Callable[[Any], Any], rows: list[Any], on_bad: OnBadRow) -> tuple[list[Any], list[Any]]:
    """The rows, without bad ones, and what the function makes of each."""
    made: list[Any] = []
    try:
        made.extend(map(fn, rows))
    except Exception as error:  # noqa: BLE001 (whatever the user's function raises)
        on_bad(len(made), rows[len(made)], error)
        return _each_of_the_rest(fn, rows, made, on_bad)
    if len(made) < len(rows):  # a StopIteration would end the rows without a word
        on_bad(len(made), rows[len(made)], RuntimeError("A function of a stream raised StopIteration."))
        return _each_of_the_rest(fn, rows, made, on_bad)
    return rows, made


def _each_of_the_rest(
    fn: Callable[[Any], Any], rows: list[Any], made: list[Any], on_bad: OnBadRow
) -> tuple[list[Any], list[Any]]:
    good = rows[: len(made)]
    for index in range(len(made) + 1, len(rows)):
        try:
            made.append(fn(rows[index]))
            good.append(rows[index])
        except Exception as error:  # noqa: BLE001 (whatever the user's function raises)
            on_bad(index, rows[index], error)
    return good, made
