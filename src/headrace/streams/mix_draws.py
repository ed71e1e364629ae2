"""Which stream of a mix gives each position: drawn at random, evenly, by tokens, or batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from headrace.base.indices import Indices
from headrace.order.counter_rng import fractions_at

Draw: TypeAlias = Literal["random", "even", "tokens", "stratified", "batches"]
DRAWS = ("random", "even", "tokens", "stratified", "batches")
BY_BATCH = ("stratified", "batches")

_GOLDEN = 0.6180339887498949
_PHASE = 2**62  # the counter of a number that no position has
_NEARLY = 1e-9
_SPARE = 16  # rows of each stream that are looked at beyond its share


class Span(Protocol):
    """Positions [start, stop) of a mix."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def draw(self, key: int) -> Indices:
        """The number of the stream that gives each position."""
        ...

    def until(self, stop: int) -> Span:
        """The same positions, but for those from `stop` on."""
        ...


class DrawnSpan(NamedTuple):
    """Positions [start, stop) of a mix that are drawn with the same weights; those of streams that ended are 0."""

    start: int
    stop: int
    weights: tuple[float, ...]

    def draw(self, key: int) -> Indices:
        """The number of the stream that gives each position."""
        return _drawn(np.arange(self.start, self.stop, dtype=np.uint64), self.weights, key)

    def until(self, stop: int) -> DrawnSpan:
        return self._replace(stop=stop)


def _drawn(counters: Any, weights: tuple[float, ...], key: int) -> Indices:
    borders = np.cumsum(weights)
    drawn = np.searchsorted(borders, fractions_at(counters, key) * borders[-1], side="right")
    # Where a product is rounded up to the last border, it belongs to the last stream that weighs anything.
    numbers: Indices = np.minimum(drawn, _last(weights))
    return numbers


def _last(weights: tuple[float, ...]) -> int:
    return max(i for i, weight in enumerate(weights) if weight)


class BatchSpan(NamedTuple):
    """The same, in batches of `size` positions.

    Attributes:
        is_single: whether a batch is given by one stream; else each stream gives its share of every batch, rounded up
            in some batches and down in others.
    """

    start: int
    stop: int
    weights: tuple[float, ...]
    size: int
    is_single: bool

    def draw(self, key: int) -> Indices:
        """The number of the stream that gives each position."""
        first, last = self.start // self.size, -(-self.stop // self.size)
        batches = np.arange(first, last, dtype=np.uint64)
        if self.is_single:
            order = np.repeat(_drawn(batches, self.weights, key), self.size)
        else:
            order = self._shares(batches, key).ravel()
        return order[self.start - first * self.size : self.stop - first * self.size]

    def _shares(self, batches: Any, key: int) -> Indices:
        borders = np.cumsum(self.weights) * (self.size / sum(self.weights))
        nearest = np.round(borders)
        borders = np.where(np.abs(borders - nearest) < _NEARLY * self.size, nearest, borders)
        # Points at equal distances: as many of them lie between two borders as is their distance, rounded up or down.
        phases = (fractions_at(np.array([_PHASE], np.uint64), key) + batches * _GOLDEN) % 1
        points = np.arange(self.size) + phases[:, None]
        streams = np.minimum(np.searchsorted(borders, points, side="right"), _last(self.weights))
        positions = batches[:, None] * np.uint64(self.size) + np.arange(self.size, dtype=np.uint64)
        places = np.argsort(fractions_at(positions.ravel(), key).reshape(positions.shape), axis=1)
        shares: Indices = np.take_along_axis(streams, places, axis=1)
        return shares

    def until(self, stop: int) -> BatchSpan:
        return self._replace(stop=stop)


class ListedSpan(NamedTuple):
    """Positions whose streams are listed, since they follow from more than the weights.

    Attributes:
        numbers: of the streams, 16 bits each.
    """

    start: int
    stop: int
    numbers: bytes

    def draw(self, key: int) -> Indices:
        """The number of the stream that gives each position."""
        return np.frombuffer(self.numbers, np.uint16).astype(np.int64)

    def until(self, stop: int) -> ListedSpan:
        return ListedSpan(self.start, stop, self.numbers[: 2 * (stop - self.start)])


class Drawer(Protocol):
    """Decides whose row comes next."""

    def aligned(self, position: int) -> int:
        """The position whose weights hold at this one, too."""
        ...

    def draw(self, start: int, stop: int, weights: tuple[float, ...], offsets: Sequence[int]) -> Span:
        """Draw the positions [start, stop), or fewer, if streams end.

        Args:
            offsets: how many rows each stream has given before.
        """
        ...


class RandomDrawer:
    """Each position is drawn by itself."""

    def aligned(self, position: int) -> int:
        return position

    def draw(self, start: int, stop: int, weights: tuple[float, ...], offsets: Sequence[int]) -> DrawnSpan:
        return DrawnSpan(start, stop, weights)


class BatchDrawer:
    """Each batch of `size` positions is drawn as a whole."""

    def __init__(self, size: int, *, is_single: bool) -> None:
        self._size = size
        self._is_single = is_single

    def aligned(self, position: int) -> int:
        return position - position % self._size

    def draw(self, start: int, stop: int, weights: tuple[float, ...], offsets: Sequence[int]) -> BatchSpan:
        return BatchSpan(start, stop, weights, self._size, self._is_single)


Lengths: TypeAlias = Callable[[int, int, int], Any]
"""The lengths of the rows [start, stop) of a stream; of fewer, if it ends."""


class EvenDrawer:
    """Streams in turn, as their weights ask: at any position, each has given its share, within about one row.

    A row comes when the middle of it is due: where a stream that gave the whole mix at the speed of its weight would
    have given that much. So the order of some rows follows from theirs alone.

    Args:
        lengths: of rows, which count as much; None if all count alike.
    """

    def __init__(self, lengths: Lengths | None = None) -> None:
        self._lengths = lengths
        self._weights: tuple[float, ...] = ()
        self._given: list[float] = []  # since the weights are these: rows, or tokens
        self._offsets: list[int] = []  # up to which that is counted

    def aligned(self, position: int) -> int:
        return position

    def draw(self, start: int, stop: int, weights: tuple[float, ...], offsets: Sequence[int]) -> ListedSpan:
        if weights != self._weights:
            self._weights, self._given, self._offsets = weights, [0.0] * len(weights), list(offsets)
        for i, offset in enumerate(offsets):
            if offset > self._offsets[i]:
                self._given[i] += float(np.sum(self._sizes(i, self._offsets[i], offset)))
                self._offsets[i] = offset
        order = self._merge(stop - start, weights)
        return ListedSpan(start, start + len(order), order.astype(np.uint16).tobytes())

    def _merge(self, n: int, weights: tuple[float, ...]) -> Indices:
        """The streams of the next n positions."""
        total = sum(weights)
        wanted = [min(n, int(n * weight / total) + _SPARE) if weight else 0 for weight in weights]
        while True:
            due = [self._due(i, many) for i, many in enumerate(wanted)]
            numbers = np.repeat(np.arange(len(due)), [len(one) for one in due])
            order: Indices = numbers[np.argsort(np.concatenate(due), kind="stable")][:n]
            # Of a stream all of whose rows are among the next n, more may be.
            used = np.bincount(order, minlength=len(due))
            short = [i for i, one in enumerate(due) if len(one) == wanted[i] == used[i] < n and weights[i]]
            if not short:
                return order
            for i in short:
                wanted[i] = min(n, 2 * wanted[i])

    def _due(self, stream: int, n: int) -> Any:
        """When the next rows of a stream are due."""
        if not n:
            return np.empty(0)
        sizes = self._sizes(stream, self._offsets[stream], self._offsets[stream] + n)
        return (self._given[stream] + np.cumsum(sizes) - sizes / 2) / self._weights[stream]

    def _sizes(self, stream: int, start: int, stop: int) -> Any:
        if self._lengths is None:
            return np.ones(stop - start)
        return np.asarray(self._lengths(stream, start, stop), np.float64)
