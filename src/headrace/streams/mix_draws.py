"""Which stream of a mix gives the row at each position: a function of a key, the position and the weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.base.indices import Indices
from headrace.order.counter_rng import fractions_at
from headrace.streams.windows import Window


class DrawnSpan(NamedTuple):
    """Positions [start, stop) of a mix that are drawn with the same weights; those of streams that ended are 0."""

    start: int
    stop: int
    weights: tuple[float, ...]

    def draw(self, key: int) -> Indices:
        """The number of the stream that gives each position."""
        fractions = fractions_at(np.arange(self.start, self.stop, dtype=np.uint64), key)
        borders = np.cumsum(self.weights)
        drawn = np.searchsorted(borders, fractions * borders[-1], side="right")
        # Where a product is rounded up to the last border, it belongs to the last stream that weighs anything.
        last = max(i for i, weight in enumerate(self.weights) if weight)
        numbers: Indices = np.minimum(drawn, last)
        return numbers


class Piece(NamedTuple):
    """The rows [start, stop) of a window of one of the streams."""

    stream: int
    window: Window
    start: int
    stop: int


class MixedRows(NamedTuple):
    """What some positions of a mix are made of.

    Attributes:
        pieces: stream by stream, the rows of each in their order.
    """

    key: int
    spans: tuple[DrawnSpan, ...]
    pieces: tuple[Piece, ...]

    def places(self) -> Indices:
        """Where among the rows of the pieces, one after the other, the row of each position is."""
        order = np.concatenate([span.draw(self.key) for span in self.spans])
        places = np.empty(len(order), np.int64)
        places[np.argsort(order, kind="stable")] = np.arange(len(order))
        return places
