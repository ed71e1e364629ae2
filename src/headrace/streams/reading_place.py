"""Who reads the windows of a stream: the workers, or the loop itself."""

from __future__ import annotations

from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

_TRIAL = 8  # windows by which the two ways are compared
_FIRST_OF_WORKERS = 16  # windows after a change that are not counted: the workers were ahead when it began
_FIRST_OF_LOOP = 1
_STAYS = 256  # windows, until both ways are compared again; twice as many each time
_STAYS_AT_MOST = 1024
_HIDDEN = 0.05  # of the time: a loop that waits no longer than that has nothing to gain
_BETTER = 0.98


class _Taken(NamedTuple):
    """A window that the loop is at: its number, who has read it, how many rows it had so far, and since when."""

    number: int
    is_here: bool
    n_rows: int
    since_ns: int


class ReadingPlace:
    """Chooses the way by which the loop waits least: tries both for a few windows, and again once in a while.

    Where nothing but Arrow reads, the way from a worker to the loop can take longer than reading.

    Attributes:
        is_here: whether the loop is to read the next windows itself.
        waited_ns: how long the loop has waited for the window that it is at, and for the batches that are made of it.
    """

    def __init__(self) -> None:
        self.is_here = False
        self._stays = _STAYS
        self._rates: dict[bool, float] = {}  # nanoseconds a row, of each way
        self._begin()

    def _begin(self) -> None:
        self._n_first = self._n_seen = 0
        self._waits: list[tuple[float, float]] = []  # nanoseconds a row, and the share of the time
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """What was before is no part of any wait."""
        self._taken: _Taken | None = None
        self.waited_ns = 0

    def take(self, window: int, n_rows: int, *, is_here: bool, now_ns: int | None = None) -> None:
        """The loop gets some rows of a window; there may be more of it."""
        taken = self._taken
        if taken is not None and taken.number == window:
            self._taken = taken._replace(n_rows=taken.n_rows + n_rows)
            return
        now_ns = perf_counter_ns() if now_ns is None else now_ns
        waited_ns, self.waited_ns = self.waited_ns, 0
        self._taken = _Taken(window, is_here, n_rows, now_ns)
        if taken is not None and taken.is_here is self.is_here:  # else it was asked for before the change
            self._note(waited_ns / max(taken.n_rows, 1), waited_ns / max(now_ns - taken.since_ns, 1))

    def _note(self, per_row_ns: float, share: float) -> None:
        """A window was used up."""
        if self._n_first:
            self._n_first -= 1
            return
        self._n_seen += 1
        if self._n_seen <= _TRIAL:
            self._waits.append((per_row_ns, share))
        if self._n_seen == _TRIAL:
            self._judge()
        elif self._n_seen >= self._stays:
            self._rates.clear()
            self._stays = min(2 * self._stays, _STAYS_AT_MOST)
            self._begin()

    def _judge(self) -> None:
        per_row_ns, share = (median(figures) for figures in zip(*self._waits, strict=True))  # whatever else happened
        self._rates[self.is_here] = per_row_ns
        here, workers = self._rates.get(True, 0.0), self._rates.get(False, 0.0)  # what is not known is tried
        if share > _HIDDEN and self.is_here is not (here < _BETTER * workers):
            self.is_here = not self.is_here
            self._begin()
            self._n_first = _FIRST_OF_LOOP if self.is_here else _FIRST_OF_WORKERS
