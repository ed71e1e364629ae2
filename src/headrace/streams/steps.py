"""What is done to the rows of a window, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from headrace.sources.source import Chunk
from headrace.streams.rows import ArrayRows, ObjectRows

OnBadRow: TypeAlias = Callable[[Any, Exception], None]
"""Hears of rows at which a step raised, which are then left out."""


class Step(Protocol):
    """Makes rows of rows. A window goes through each step as a whole."""

    @property
    def keeps_count(self) -> bool:
        """Whether there are as many rows afterwards as before, if none raises."""
        ...

    def apply(self, rows: Chunk, on_bad: OnBadRow | None) -> Chunk: ...


@dataclass(frozen=True)
class Map:
    fn: Callable[[Any], Any]
    keeps_count = True

    def apply(self, rows: Chunk, on_bad: OnBadRow | None) -> Chunk:
        return ObjectRows([made for _, made in _each(self.fn, rows, on_bad)])


@dataclass(frozen=True)
class Filter:
    fn: Callable[[Any], Any]
    keeps_count = False

    def apply(self, rows: Chunk, on_bad: OnBadRow | None) -> Chunk:
        return ObjectRows([row for row, keep in _each(self.fn, rows, on_bad) if keep])


@dataclass(frozen=True)
class FlatMap:
    fn: Callable[[Any], Iterable[Any]]
    keeps_count = False

    def apply(self, rows: Chunk, on_bad: OnBadRow | None) -> Chunk:
        made = _each(lambda row: list(self.fn(row)), rows, on_bad)  # a generator raises while it is gone through
        return ObjectRows([one for _, several in made for one in several])


@dataclass(frozen=True)
class MapBatches:
    """Applies a function to columns, so many rows at a time; the last batch of a window is smaller."""

    fn: Callable[[dict[str, Any]], dict[str, Any]]
    size: int
    keeps_count = False

    def apply(self, rows: Chunk, on_bad: OnBadRow | None) -> Chunk:
        parts = []
        for start in range(0, len(rows), self.size):
            stop = min(start + self.size, len(rows))
            try:
                parts.append(self.fn(rows.slice(start, stop).columns()))
            except Exception as error:
                if on_bad is None:
                    raise
                on_bad(f"rows {start} to {stop - 1} of the window", error)
        return ArrayRows.joined(parts)


@dataclass(frozen=True)
class Pack:
    """Cuts sequences of tokens, one after the other, into rows of one length.

    Guarantees: nothing is lost. The last row of a window, which may be shorter, is kept as it is.
    """

    length: int
    keeps_count = False

    def apply(self, rows: Chunk, on_bad: OnBadRow | None) -> Chunk:
        tokens = [token for _, sequence in _each(list, rows, on_bad) for token in sequence]
        return ObjectRows([tokens[start : start + self.length] for start in range(0, len(tokens), self.length)])


def _each(fn: Callable[[Any], Any], rows: Chunk, on_bad: OnBadRow | None) -> list[tuple[Any, Any]]:
    """Each row with what the function makes of it."""
    if on_bad is None:
        return [(row, fn(row)) for row in rows.rows()]
    made = []
    for row in rows.rows():
        try:
            made.append((row, fn(row)))
        except Exception as error:  # noqa: BLE001 (whatever the user's function raises)
            on_bad(row, error)
    return made
