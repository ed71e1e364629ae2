"""Several streams as one: at each position, a draw decides whose row comes next."""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from headrace.base.generators import derive_key
from headrace.base.indices import Indices
from headrace.sources.source import Block, Chunk, FileVersion, OnBad
from headrace.streams.mix_draws import BY_BATCH, BatchDrawer, Draw, Drawer, EvenDrawer, RandomDrawer, Span
from headrace.streams.tokens import sequence_length
from headrace.streams.windows import Blocks, PastTheEndError, Share, Window

if TYPE_CHECKING:
    from headrace.streams.counts import RowCounts
    from headrace.streams.recipe import Ask, Recipe

Weights: TypeAlias = Sequence[float] | Callable[[int], Sequence[float]] | Sequence[tuple[int, Sequence[float]]]

_ASKED_EVERY = 1024  # positions: how often a function is asked


class MixWeights:
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
        self._before: MixWeights | None = None
        self._since = 0
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

    @property
    def pairs(self) -> list[list[Any]] | None:
        """Positions, and the weights from each on; None if a function says."""
        if self._weights is not None:
            return None
        return [[start, list(weights)] for start, weights in zip(self._starts, self._constants, strict=True)]

    def after(self, before: Sequence[Sequence[Any]], since: int) -> MixWeights:
        """These weights from position `since` on, and before it others, as `pairs` has them."""
        weights = copy.copy(self)
        weights._before = MixWeights([(start, given) for start, given in before], self._n_streams)
        weights._since = since
        return weights

    def at(self, position: int) -> tuple[float, ...]:
        """The weights at a position."""
        if self._before is not None and position < self._since:
            return self._before.at(position)
        if self._weights is not None:
            return self._checked(self._weights(position - position % _ASKED_EVERY))
        return self._constants[bisect_right(self._starts, position) - 1]

    def hears(self, stream: int) -> bool:
        """Whether a stream may ever be drawn."""
        is_heard_before = self._before is not None and self._before.hears(stream)
        return is_heard_before or self._weights is not None or any(weights[stream] for weights in self._constants)

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, tuple[float, ...]]]:
        """The positions [start, stop), as ranges with the weights that hold there."""
        while start < stop:
            end = min(stop, self._end(start))
            yield start, end, self.at(start)
            start = end

    def _end(self, position: int) -> int:
        if self._before is not None and position < self._since:
            return min(self._since, self._before._end(position))
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


class MixPiece(NamedTuple):
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
    spans: tuple[Span, ...]
    pieces: tuple[MixPiece, ...]

    def places(self) -> Indices:
        """Where among the rows of the pieces, one after the other, the row of each position is."""
        order = np.concatenate([span.draw(self.key) for span in self.spans])
        places = np.empty(len(order), np.int64)
        places[np.argsort(order, kind="stable")] = np.arange(len(order))
        return places


Stop: TypeAlias = Literal["first", "all", "longest", "never"]
STOPS = ("first", "all", "longest", "never")

_FEWEST_ROWS, _MOST_ROWS = 16, 2**16  # in a block
_COUNTED_AT_ONCE = 4  # windows


class PartRows:
    """The rows of one stream of a mix, window by window, counted as far as anybody has asked.

    Attributes:
        n_rows: of the stream, or of its first pass if it is repeated, once that is known.

    Args:
        repeats: whether it starts again when it has ended.
        measures: whether the lengths of rows are wanted, too.
    """

    def __init__(
        self,
        recipe: Recipe,
        seed: int | None,
        epoch: int,
        counts: RowCounts,
        ask: Ask,
        *,
        repeats: bool,
        measures: bool = False,
    ) -> None:
        self._counts = counts
        self._measures = measures
        self._lengths: list[Any] = []  # of the rows of each window
        self._ask = ask
        windows = replace(recipe, rounds=None if repeats else recipe.rounds).epoch_windows(seed, epoch, counts, ask)
        self._per_pass = recipe.epoch_windows(seed, epoch, counts, ask).n_windows
        self._most_empty = windows.most_empty
        self._rest = iter(windows)
        self._windows: list[Window] = []
        self._ends: list[int] = []  # of the windows, in rows
        self._has_ended = False
        self.n_rows: int | None = None

    def ends_within(self, n_rows: int) -> bool:
        """Whether the stream, or its first pass, has at most so many rows."""
        self._count_to(n_rows + 1)
        return self.n_rows is not None and self.n_rows <= n_rows

    def pieces(self, number: int, start: int, stop: int) -> list[MixPiece]:
        """The windows that the rows [start, stop) lie in, for stream `number` of a mix.

        Those without rows, up to the next row, are among them: whoever reads them tells what is bad in them.
        """
        if start == stop:
            return []
        self._count_to(stop)
        pieces = []
        for i in range(bisect_right(self._ends, start) if start else 0, len(self._ends)):
            first, end = self._ends[i - 1] if i else 0, self._ends[i]
            if first > stop or first == stop < end:
                break
            pieces.append(MixPiece(number, self._windows[i], max(start, first) - first, min(stop, end) - first))
        return pieces

    def lengths(self, start: int, stop: int) -> Any:
        """The lengths of the rows [start, stop); of fewer, if the stream ends. Those before are forgotten."""
        self._count_to(stop)
        first = bisect_right(self._ends, start)
        for i in range(first - 1, -1, -1):
            if self._lengths[i] is None:
                break
            self._lengths[i] = None
        n_before = self._ends[first - 1] if first else 0
        found = [lengths for lengths in self._lengths[first : bisect_right(self._ends, stop) + 1] if len(lengths)]
        return np.concatenate([np.empty(0, np.int64), *found])[start - n_before : stop - n_before]

    @property
    def first_rows(self) -> int:
        """The number of rows of the first window that has any; 0 if there is none."""
        self._count_to(1)
        return next(filter(None, self._ends), 0)

    def _count_to(self, n_rows: int) -> None:
        while not self._has_ended and (self._ends[-1] if self._ends else 0) < n_rows:
            self._count_on()

    def _count_on(self) -> None:
        """Count a few windows more, up to the end of a pass."""
        at_once = _COUNTED_AT_ONCE
        if self._per_pass:
            at_once = min(at_once, self._per_pass - len(self._windows) % self._per_pass)
        windows = list(islice(self._rest, at_once))
        counts = self._counted(windows)
        for window, n_rows in zip(windows, counts, strict=False):
            self._windows.append(window)
            self._ends.append((self._ends[-1] if self._ends else 0) + n_rows)
        is_empty = self._most_empty is not None and len(self._windows) >= self._most_empty and not self._ends[-1]
        self._has_ended = len(counts) < at_once or is_empty
        if self.n_rows is None and (self._has_ended or len(self._windows) == self._per_pass):
            self.n_rows = self._ends[-1] if self._ends else 0
            self._has_ended = self._has_ended or self.n_rows == 0  # the same again would be nothing, too

    def _counted(self, windows: list[Window]) -> list[int]:
        """The numbers of rows of the windows; fewer, if the data had ended before the others."""
        shares = list(map(Share, windows))
        try:
            if not self._measures:
                return self._counts.count(shares, self._ask)
            measured = self._counts.measure(shares, self._ask)
            self._lengths += measured
            return [len(lengths) for lengths in measured]
        except PastTheEndError:
            return [] if len(shares) == 1 else [n for window in windows for n in self._counted([window])]


class _Drawn(NamedTuple):
    """What is known of a block: how it is drawn, and which rows of each stream it has."""

    spans: tuple[Span, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]


class MixedBlocks:
    """The blocks of one epoch of a mix, found one after the other, as far as anybody asks.

    Guarantees: a function of the key, the weights and the numbers of rows; each stream's rows keep their order.

    Args:
        stop: "first" ends with the first stream that ends; "all" goes on with the others, until all have ended;
            "longest" lets those that have ended start again, until each has ended once; "never" for ever.
        multiple: that the number of positions of a block is.
    """

    def __init__(
        self,
        parts: Sequence[PartRows],
        weights: MixWeights,
        stop: Stop,
        key: int,
        drawer: Drawer | None = None,
        multiple: int = 1,
    ) -> None:
        self._parts = parts
        self._drawer = drawer or RandomDrawer()
        self._multiple = multiple
        self._weights = weights
        self._stop = stop
        self._key = key
        self._drawn: list[_Drawn] = []
        self._position = 0
        self._offsets = [0] * len(parts)  # rows of each stream that come before the position
        unheard = {i for i in range(len(parts)) if stop != "first" and not weights.hears(i)}
        self._ended = {i for i, part in enumerate(parts) if i in unheard or part.ends_within(0)}
        self._silent = set(self._ended)  # streams that are not drawn any more
        self._is_over = self._ended_enough()
        self._size = 0 if self._is_over else self._block_rows()

    @property
    def n_blocks(self) -> int | None:
        if self._stop == "never" and not self._is_over:
            return None
        while not self._is_over:
            self._draw_block()
        return len(self._drawn)

    def __getitem__(self, number: int, /) -> Block:
        while number >= len(self._drawn):
            if self._is_over:
                raise IndexError(f"block {number}")
            self._draw_block()
        spans, starts, stops = self._drawn[number]
        pieces = [piece for i, part in enumerate(self._parts) for piece in part.pieces(i, starts[i], stops[i])]
        first, end = spans[0].start, spans[-1].stop
        mixed = MixedRows(self._key, spans, tuple(pieces))
        return Block(f"positions {first} to {end - 1} of a mix", mixed, None, end - first)

    def _block_rows(self) -> int:
        """So many that a block needs about one window of the stream that gives most."""
        first = self._weights.at(0)
        rows = [part.first_rows * sum(first) / w for part, w in zip(self._parts, first, strict=True) if w]
        n_rows = int(min(max(min(rows), _FEWEST_ROWS), _MOST_ROWS))
        return -(-n_rows // self._multiple) * self._multiple

    def _draw_block(self) -> None:
        starts, spans = tuple(self._offsets), []
        end = self._position + self._size
        while self._position < end and not self._is_over:
            spans.append(self._draw_span(end))
        self._drawn.append(_Drawn(tuple(spans), starts, tuple(self._offsets)))

    def first_position(self, number: int) -> int:
        """Where a block begins; behind the last one, where that ends."""
        while number >= len(self._drawn) and not self._is_over:
            self._draw_block()
        return self._drawn[number].spans[0].start if number < len(self._drawn) else self._position

    def _draw_span(self, end: int) -> Span:
        """Draw up to `end`, to where the weights change, or to where a stream ends."""
        start = self._position
        aligned = self._drawer.aligned(start)
        _, change, weights = next(self._weights.spans(aligned, max(end, aligned + 1)))
        while self._drawer.aligned(change) != change and change < end:
            change += 1  # the batch in which weights change keeps those that it has
        stop = min(end, change)
        heard = tuple(0.0 if i in self._silent else weight for i, weight in enumerate(weights))
        if not sum(heard):
            raise ValueError(
                f"At position {start} of the mix, all streams that are left weigh 0. Give one of them a weight, or "
                "choose another stop than 'all'."
            )
        span = self._drawer.draw(start, stop, heard, self._offsets)
        order = span.draw(self._key)
        n_drawn = self._up_to_an_end(order)
        for i, n in enumerate(np.bincount(order[:n_drawn], minlength=len(self._parts)).tolist()):
            self._offsets[i] += n
        self._position += n_drawn
        self._note_ends()
        return span.until(start + n_drawn)

    def _up_to_an_end(self, order: Indices) -> int:
        """How many positions are drawn until a stream ends, with the one that gives its last row."""
        n_drawn = len(order)
        for i, n in enumerate(np.bincount(order, minlength=len(self._parts)).tolist()):
            part = self._parts[i]
            if n and i not in self._ended and part.ends_within(self._offsets[i] + n):
                left = (part.n_rows or 0) - self._offsets[i]
                n_drawn = min(n_drawn, int(np.flatnonzero(order == i)[left - 1]) + 1)
        return n_drawn

    def _note_ends(self) -> None:
        for i, part in enumerate(self._parts):
            if i not in self._ended and part.ends_within(self._offsets[i]):
                self._ended.add(i)
                if self._stop == "all":
                    self._silent.add(i)
        self._is_over = self._ended_enough()

    def _ended_enough(self) -> bool:
        if self._stop == "first":
            return bool(self._ended)
        n_needed = len(self._silent) if self._stop == "never" else len(self._ended)
        return n_needed == len(self._parts)


class MixSource:
    """The rows of several recipes, mixed. A block is a range of positions; `MixedRows` says what it is made of.

    Attributes:
        recipes: of the streams.
        weights: of the streams.
        seed: used if the loader has none.
        length: measures a row, where tokens are mixed.
        batch: rows in a batch, where whole batches are drawn; else 1.
    """

    in_order = False

    def __init__(
        self,
        recipes: Sequence[Recipe],
        weights: MixWeights,
        stop: Stop,
        seed: int,
        draw: Draw = "random",
        length: Callable[[Any], int] = sequence_length,
    ) -> None:
        self.recipes = tuple(recipes)
        self.weights = weights
        self._stop = stop
        self.seed = seed
        self._draw = draw
        self.length = length
        self.batch = 1

    def lenient(self) -> MixSource:
        """The same, without files of its streams that cannot even be looked into."""
        source = copy.copy(self)
        source.recipes = tuple(recipe.lenient() for recipe in self.recipes)
        return source

    def for_batches(self, size: int) -> MixSource:
        """The same, for a loader of batches of so many rows."""
        source = copy.copy(self)
        source.batch = size if self.draws_batches else 1
        return source

    def with_weights(self, weights: MixWeights) -> MixSource:
        """The same, with other weights."""
        source = copy.copy(self)
        source.weights = weights
        return source

    @property
    def draws_batches(self) -> bool:
        """Whether batches are drawn as a whole, and not row by row."""
        return self._draw in BY_BATCH

    def plan_blocks(self, seed: int | None, epoch: int, counts: RowCounts, ask: Ask, *, must_end: bool) -> Blocks:
        """The blocks of an epoch. Rows are counted to find the windows that they lie in, and where a stream ends."""
        repeats, measures = self._stop in ("longest", "never"), self._draw == "tokens"
        parts = [
            PartRows(recipe, _seed_of_part(seed, i), epoch, part_counts, ask, repeats=repeats, measures=measures)
            for i, (recipe, part_counts) in enumerate(zip(self.recipes, counts.parts, strict=True))
        ]
        key = derive_key(self.seed if seed is None else seed, epoch, f"mix {self.seed}")
        return MixedBlocks(parts, self.weights, self._stop, key, self._drawer(parts), self.batch)

    def _drawer(self, parts: Sequence[PartRows]) -> Drawer:
        match self._draw:
            case "even":
                return EvenDrawer()
            case "tokens":
                return EvenDrawer(lambda stream, start, stop: parts[stream].lengths(start, stop))
            case "stratified" | "batches":
                return BatchDrawer(self.batch, is_single=self._draw == "batches")
            case _:
                return RandomDrawer()

    def blocks(self) -> Sequence[Block]:
        raise TypeError("The blocks of a mix are others in each epoch.")

    def versions(self) -> list[FileVersion]:
        return [file for recipe in self.recipes for file in recipe.source.versions()]

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        raise TypeError("The rows of a mix are read by the readers of its streams.")

    def describe(self) -> dict[str, Any]:
        formats = [recipe.source.describe().get("format", "data") for recipe in self.recipes]
        draw = {} if self._draw == "random" else {"draw": self._draw, "batch": self.batch}
        return {
            "format": f"a mix of {', '.join(formats)}",
            "stop": self._stop,
            "weights": list(self.weights.at(0)),
            **draw,
        }


def _seed_of_part(seed: int | None, number: int) -> int | None:
    """Streams of the same data must not be shuffled alike."""
    return None if seed is None else derive_key(seed, number, "part of a mix")
