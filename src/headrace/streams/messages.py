"""What the loop asks of the workers that read a stream, and what they answer."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.streams.windows import Share


class ReadOn(NamedTuple):
    """Read on in a window for a moment, and say how many rows there are by now: the answer is `WindowRead`.

    Attributes:
        part: how often that was asked before.
        first: the rows before this one are not wanted.
    """

    share: Share
    part: int = 0
    first: int = 0

    def where(self) -> str:
        return self.share.window.where()


class WindowRead(NamedTuple):
    """How many rows there are by now.

    Attributes:
        is_read: whether these are all, and `is_last` whether the data ended with them.
        ends: whether the file ended with a stretch of it.
        text: the rows from number `start` on, if they are strings that still lie in a text, and make lists of strings:
            a text is sent in a tenth of the time that its rows take, and nothing more has to be asked for.
        origin: a fingerprint of the first row of an iterable, as this worker has found it.
    """

    n_rows: int
    is_read: bool = False
    is_last: bool = False
    start: int = 0
    text: Any = None
    ends: bool = True
    origin: int | None = None


def equal_borders(first: int, stop: int, at_once: int) -> list[int]:
    """Where equal parts of at most `at_once` rows begin, and where the last one ends."""
    n, n_parts = stop - first, max(1, -(-(stop - first) // max(1, at_once)))
    return [first + n * i // n_parts for i in range(n_parts + 1)]


class CountRows(NamedTuple):
    """Count the rows of a window, after so many steps: the answer is `Counted`.

    Attributes:
        path: which part of a mix it is of, which part of that one, and so on; empty for the stream itself.
        n_steps: None for all.
        measures: whether the lengths of rows are wanted, too.
    """

    share: Share
    path: tuple[int, ...] = ()
    n_steps: int | None = None
    measures: bool = False

    def where(self) -> str:
        return f"counting the rows of {self.share.window.where()}"


class Counted(NamedTuple):
    """The number of rows of a window.

    Attributes:
        by_block: of each of its blocks, if they have so many in any window.
        is_settled: whether no random numbers were drawn, so that it is the same in any epoch.
        is_past_end: whether the data had ended before this window.
        lengths: of the rows, as an array, if they were wanted.
    """

    n_rows: int
    by_block: tuple[int, ...] | None = None
    is_settled: bool = False
    is_past_end: bool = False
    lengths: Any = None


class CutBatches(NamedTuple):
    """Make batches of `size` rows, from row `start` to row `stop` of a window.

    The answer is a list of batches; or `BatchesCut`, if some are left out.

    Attributes:
        number: of the first of them in the epoch, by which random numbers are keyed.
    """

    share: Share
    start: int
    stop: int
    size: int
    number: int

    def where(self) -> str:
        return (
            f"batch {self.number} or one after it, rows {self.start} to {self.stop - 1} of {self.share.window.where()}"
        )


class BatchesCut(NamedTuple):
    """Batches, and the places among them of those that are left out, because they raised."""

    batches: list[Any]
    lost: tuple[int, ...] = ()


class SendRows(NamedTuple):
    """Send the rows from `start` to `stop` of a window as they are. The answer is None if they cannot be sent.

    Attributes:
        is_last: whether the window can be forgotten then.
    """

    share: Share
    start: int
    stop: int
    is_last: bool = False

    def where(self) -> str:
        return f"the first or last rows of {self.share.window.where()}"


class SendColumns(NamedTuple):
    """Send the columns of some rows of a window, for the loop to make batches of: the answer is `ColumnParts`.

    Attributes:
        at_once: rows in each part, at most.
        is_last: whether the window can be forgotten then.
    """

    share: Share
    start: int
    stop: int
    at_once: int
    is_last: bool

    def where(self) -> str:
        return f"rows {self.start} to {self.stop - 1} of {self.share.window.where()}"


class RowSpan(NamedTuple):
    """The rows from `start` to `stop` of a window; of a part of one, before which `base` rows come."""

    share: Share
    start: int
    stop: int
    base: int = 0


class JoinBatch(NamedTuple):
    """Make a batch of rows of several windows, which are read again: the answer is that to `CutBatches`."""

    spans: tuple[RowSpan, ...]
    number: int

    def where(self) -> str:
        return f"batch {self.number}, of {' and '.join(span.share.window.where() for span in self.spans)}"
