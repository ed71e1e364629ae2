"""What the loop of a stream knows of a window that is being read, and of the batches that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol

from headrace.base.messages import BadSample, Failed, Finished, Outcome, opened
from headrace.sources.source import Chunk
from headrace.streams.column_parts import ColumnCutter, ColumnParts
from headrace.streams.messages import BatchesCut, Span
from headrace.streams.rows import JoinedRows
from headrace.streams.text import Text
from headrace.streams.windows import Share

_AHEAD = 2  # windows for each worker
_SMALL_AHEAD = 4  # of these
_SMALL_BYTES = 8 << 20

LOST: Final = object()
"""Stands where a batch would be that raised, and is left out."""


class Account(Protocol):
    """Keeps account of the rows of an epoch."""

    def give(self, number: int, spans: Sequence[Span], *, is_lost: bool) -> None:
        """A batch of these rows is handed to the loop, or left out, because it raised."""

    def end(self) -> None:
        """The loop is told that there is nothing more."""


@dataclass
class OpenWindow:
    """A window that is being read or cut.

    Attributes:
        index: its number among those of this rank.
        first: the row that it begins with; the ones before were given in another life.
        n_rows: None until the worker has told, unless the source does.
        text: the rows, if they came with their number; then the rest is answered here.
        asked: what the worker was asked for: to read it, if its number of rows is not known; then for its first rows,
            batches, and its last rows.
        answers: what has come of that, and is not taken yet, by its place in `asked`.
        n_taken: how many answers were taken.
        is_told: whether the source has told the number of rows.
        is_cut: whether all that there is to be asked for has been asked for.
    """

    share: Share
    index: int
    lane: int
    first: int = 0
    n_rows: int | None = None
    text: Text | None = None
    asked: list[Any] = field(default_factory=list)
    answers: dict[int, Outcome] = field(default_factory=dict)
    n_taken: int = 0
    is_told: bool = False
    is_cut: bool = False


def may_open_more(windows: Sequence[OpenWindow], n_ahead: int) -> bool:
    """Whether one more window may be open: enough that no worker waits for the loop, but not too much memory.

    Args:
        n_ahead: workers that work ahead of the loop; 0 if it does all itself.
    """
    if not n_ahead:
        return not windows
    is_small = bool(windows) and 0 < windows[-1].share.window.n_bytes <= _SMALL_BYTES
    return len(windows) < (_SMALL_AHEAD if is_small else _AHEAD) * n_ahead


class EmptyWindows:
    """Notices that what is repeated for ever has no rows at all.

    Args:
        most: tells after how many windows without rows no others will come; None if they end by themselves.
    """

    def __init__(self, most: Callable[[], int | None] | None) -> None:
        self._most = most
        self._n = 0

    def are_all(self, n_rows: int) -> bool:
        """Whether all windows are empty, the next one having so many rows."""
        if n_rows:
            self._most = None
        if self._most is None:
            return False
        self._n += 1
        most = self._most()
        return most is not None and self._n >= most


class RestRows:
    """Rows that are left over of windows, and are joined with those of the next one."""

    def __init__(self) -> None:
        self._rest: list[tuple[Span, Chunk | None]] = []

    def __len__(self) -> int:
        return sum(span.stop - span.start for span, _ in self._rest)

    def add(self, span: Span, rows: Chunk | None) -> None:
        """Some more; None if they are not here."""
        self._rest.append((span, rows))

    def take(self) -> tuple[tuple[Span, ...], Chunk | None]:
        """Which ones there are, and the rows, if all of them are here. Nothing is left then."""
        rest, self._rest = self._rest, []
        rows = [rows for _, rows in rest if rows is not None]
        return tuple(span for span, _ in rest), JoinedRows(rows) if len(rows) == len(rest) else None

    def shorten(self, surplus: int) -> None:
        """Leave the last ones out."""
        while surplus:
            (share, start, stop), rows = self._rest.pop()
            kept = max(0, stop - start - surplus)
            if kept:
                self.add(Span(share, start, start + kept), None if rows is None else rows.slice(0, kept))
            surplus -= stop - start - kept


class Due(NamedTuple):
    """Batches that can be handed out, one after the other, and what is to be noted then.

    Attributes:
        outcome: has them all, maybe still sealed.
        n_batches: how many there are, with those that are left out.
        places: what comes after each of them: the index of a window, and the row.
        spans: the rows of each of them.
        bad: what was left out before the first of them.
        where: what they are made of, if that is done here.
    """

    outcome: Outcome
    n_batches: int
    places: Iterator[tuple[int, int]]
    spans: Iterator[tuple[Span, ...]]
    bad: tuple[BadSample, ...]
    where: Callable[[], str] | None = None

    def batches(self, cutter: ColumnCutter | None = None) -> Iterator[Any]:
        """All of them, unsealed; some may be `LOST`.

        Args:
            cutter: makes them, if columns have come instead.

        Raises:
            Exception: they cannot be rebuilt here.
        """
        outcome = opened(self.outcome)
        if isinstance(outcome, Failed):
            raise outcome.error
        if not isinstance(outcome, Finished):
            return repeat(LOST, self.n_batches)
        value = outcome.batch
        if isinstance(value, BatchesCut):
            made = iter(value.batches)
            return (LOST if place in value.lost else next(made) for place in range(self.n_batches))
        if cutter is not None and isinstance(value, ColumnParts):
            return cutter.batches(value)
        return iter(value)
