"""How much each stream of a mix weighs, at each position."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

Weights: TypeAlias = Sequence[float] | Callable[[int], Sequence[float]] | Sequence[tuple[int, Sequence[float]]]

_ASKED_EVERY = 1024  # positions: how often a function is asked


class Schedule:
    """Weights that are constant for some positions at a time.

    Args:
        weights: one per stream; or pairs of the position from which on they hold, and weights; or a function of the
            position, which is asked at every 1024th.
        n_streams: how many there must be.

    Raises:
        ValueError: they are not one per stream, negative, or all zero; or positions do not ascend from 0.
    """

    def __init__(self, weights: Weights, n_streams: int) -> None:
        self._n_streams = n_streams
        self._weights: Callable[[int], Sequence[float]] | None = weights if callable(weights) else None
        self._starts: list[int] = []
        self._constants: list[tuple[float, ...]] = []
        if not callable(weights):
            pairs: list[Any] = list(weights)
            if not pairs or not isinstance(pairs[0], Sequence):
                pairs = [(0, pairs)]
            self._starts = [start for start, _ in pairs]
            self._constants = [self._checked(given) for _, given in pairs]
            if self._starts[0] != 0 or sorted(set(self._starts)) != self._starts:
                raise ValueError(f"The positions of weights must ascend from 0, got {self._starts}.")

    def at(self, position: int) -> tuple[float, ...]:
        """The weights at a position."""
        if self._weights is not None:
            return self._checked(self._weights(position - position % _ASKED_EVERY))
        return self._constants[bisect_right(self._starts, position) - 1]

    def hears(self, stream: int) -> bool:
        """Whether a stream may ever be drawn."""
        return self._weights is not None or any(weights[stream] for weights in self._constants)

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, tuple[float, ...]]]:
        """The positions [start, stop), as ranges with the weights that hold there."""
        while start < stop:
            end = min(stop, self._end(start))
            yield start, end, self.at(start)
            start = end

    def _end(self, position: int) -> int:
        if self._weights is not None:
            return position - position % _ASKED_EVERY + _ASKED_EVERY
        place = bisect_right(self._starts, position)
        return self._starts[place] if place < len(self._starts) else 2**62

    def _checked(self, weights: Any) -> tuple[float, ...]:
        checked = tuple(map(float, weights))
        if len(checked) != self._n_streams:
            raise ValueError(f"There must be a weight for each of the {self._n_streams} streams, got {weights!r}.")
        if not all(math.isfinite(weight) and weight >= 0 for weight in checked) or not sum(checked):
            raise ValueError(f"Weights must be numbers of at least 0, not all of them 0, got {weights!r}.")
        return checked
