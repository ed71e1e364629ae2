"""Time on other machines: their clocks translated into this one's, and how many workers the loop has need of."""

from __future__ import annotations

from array import array
from time import monotonic

from headrace.base.messages import Span


class Clock:
    """How far the clock of a worker is ahead, as far as is known from calls: none begins before it was made.

    Guarantees: translated times lie within the call, up to half of the quickest call's time on the way.
    """

    def __init__(self) -> None:
        self._least: int | None = None
        self._most: int | None = None

    def note(self, sent: int, begun: int, ended: int, arrived: int) -> None:
        """A call was sent, and its answer arrived, by this clock; it began and ended by the worker's."""
        self._least = ended - arrived if self._least is None else max(self._least, ended - arrived)
        self._most = begun - sent if self._most is None else min(self._most, begun - sent)

    @property
    def ahead_ns(self) -> int:
        return 0 if self._least is None or self._most is None else (self._least + self._most) // 2

    def translated(self, span: Span) -> Span:
        """The same span by this machine's clock."""
        ahead = self.ahead_ns
        ends = array("q", [end - ahead for end in array("q", span.ends)]).tobytes()
        return span._replace(begun=span.begun - ahead, made=span.made - ahead, sent=span.sent - ahead, ends=ends)


PACE_S = 1.0
_WAITS = 0.1  # of its time: then the loop has need of more workers
_HARDLY_WAITS = 0.02
_BUSY = 0.75  # of their time that workers may be at work after one of them has ended


class WorkerPace:
    """How many workers keep up with the loop, from how long it waits for them and how busy they are.

    Args:
        least: workers that there are to be, and `most` that there may be.

    Attributes:
        busy_ns: how long all workers have been at work; told by the dispatcher.
    """

    def __init__(self, least: int, most: int) -> None:
        self.busy_ns = 0
        self.varies = most > least
        self._least, self._most = least, most
        self._looked_at = monotonic()
        self._waited_s = 0.0
        self._quiet = 0  # looks in a row at which there were too many

    def is_due(self, now: float) -> bool:
        return self.varies and now - self._looked_at >= PACE_S

    def wanted(self, workers: int, waited_s: float) -> int:
        """How many there are to be, of `workers` now; the loop has waited so long in all."""
        now = monotonic()
        seconds = max(now - self._looked_at, 1e-3)
        waits = (waited_s - self._waited_s) / seconds
        busy = self.busy_ns / 1e9 / seconds
        self._looked_at, self._waited_s, self.busy_ns = now, waited_s, 0
        if waits > _WAITS and busy > workers / 2:
            self._quiet = 0
            return min(self._most, workers + max(1, workers // 2))
        self._quiet = self._quiet + 1 if waits < _HARDLY_WAITS and busy < _BUSY * (workers - 1) else 0
        if self._quiet > 2:
            self._quiet = 0
            return max(self._least, workers - 1)
        return workers
