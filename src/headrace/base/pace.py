"""Decides what is timed: everything, unless it comes so quickly that timing would be felt; then one run of many."""

from __future__ import annotations

_RUN = 32  # numbers in a row; a run of batches shows more than as many single ones
_MOST_SELDOM = 8  # doublings: at least one run of 256 is timed
_SHARE = 1 / 1000  # of the time may go into timing
_MEMORY = 64  # how many durations the mean is about; fewer would forget the slow one in a hundred


class Pace:
    """Tells by a mask which numbers are timed: those with `number & mask == 0`.

    Guarantees: what is timed at a slower pace is also timed at a quicker one, so two that count the same things have as
    much in common as possible. Timing takes a tenth of a percent of the time, unless even one run of 256 takes more.

    Args:
        cost_ns: what it takes to time one.

    Attributes:
        mean_ns: of the latest durations.

    Examples:
        >>> pace = Pace(cost_ns=500)
        >>> pace.note(1_000_000)  # a millisecond: all are timed
        >>> pace.mask
        0
        >>> for _ in range(1000):
        ...     pace.note(150_000)
        >>> timed = [number for number in range(300) if not number & pace.mask]
        >>> timed == [*range(32), *range(128, 160), *range(256, 288)]
        True
    """

    __slots__ = ("_enough_ns", "_n", "mask", "mean_ns")

    def __init__(self, cost_ns: int) -> None:
        self._enough_ns = round(cost_ns / _SHARE)
        self.mean_ns = self._n = 0
        self.mask = 0

    def note(self, duration_ns: int) -> None:
        """One took so long, its timing included."""
        self._n += self._n < _MEMORY
        self.mean_ns = mean = self.mean_ns + (duration_ns - self.mean_ns) // self._n
        if mean >= self._enough_ns:
            self.mask = 0
            return
        seldom = (self._enough_ns // (mean or 1)).bit_length()
        self.mask = ((1 << (seldom if seldom < _MOST_SELDOM else _MOST_SELDOM)) - 1) * _RUN
