"""What the loop of a stream knows of a window that is being read, and of the batches that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headrace.base.messages import BadSample, Outcome
from headrace.sources.source import Chunk
from headrace.streams.messages import Span
from headrace.streams.windows import Share


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
        n_rows: None until the worker has told.
        bad: what was left out of it.
        parts: what the worker has sent so far, by the order in which it was asked for.
        n_asked: how many parts were asked for.
        head: the first row after those that are joined with rows of other windows.
        end: the first row after the last whole batch.
        first_batch: the number of the batch that begins at `head`.
    """

    share: Share
    index: int
    lane: int
    first: int = 0
    n_rows: int | None = None
    bad: tuple[BadSample, ...] = ()
    parts: dict[int, Outcome] = field(default_factory=dict)
    n_asked: int = 0
    n_given: int = 0
    head: int = 0
    end: int = 0
    first_batch: int = 0


class Rest(NamedTuple):
    """Rows that are joined with those of the next window; None if they cannot be sent here."""

    span: Span
    rows: Chunk | None


class Due(NamedTuple):
    """A batch that can be handed out, and what is to be noted then.

    Attributes:
        place: what comes next: the index of a window, and the row.
        is_lost: whether there is none, because it raised.
        bad: what was left out since the batch before.
    """

    batch: Any
    place: tuple[int, int]
    spans: tuple[Span, ...]
    is_lost: bool
    bad: tuple[BadSample, ...]
