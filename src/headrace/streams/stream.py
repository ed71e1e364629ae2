"""A stream: a source, and what is to be done to its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from headrace.base.world import get_worker_info
from headrace.data.dataset import IterableDataset
from headrace.order.permutation import Permutation
from headrace.order.shard import resolve_shard
from headrace.sources.source import BadRecord, Chunk, Source
from headrace.streams.explain import explain
from headrace.streams.limits import Cuts, Limit, cut_windows
from headrace.streams.own_source import OwnSource
from headrace.streams.rows import JoinedRows, shuffle_rows
from headrace.streams.steps import Filter, FlatMap, Map, MapBatches, OnBadRow, Pack, Step
from headrace.streams.windows import Shuffle, Window, WindowPlan

_WINDOW_BLOCKS = 8


@dataclass(frozen=True)
class Recipe:
    """What a stream is made of; plain enough to be sent to workers.

    Attributes:
        steps: done to the rows of each window.
        rounds: how often the data is gone through in an epoch.
        limits: which rows of each round are left; they are in the order of their stages.
        as_columns: whether batches are made of columns, and not of rows.
    """

    source: Source
    steps: tuple[Step, ...] = ()
    shuffle: Shuffle | None = None
    rounds: int = 1
    limits: tuple[Limit, ...] = ()
    as_columns: bool = False

    def plan(self, seed: int | None, epoch: int) -> WindowPlan:
        """The windows of an epoch."""
        own_seed = 0 if self.shuffle is None else self.shuffle.seed
        return WindowPlan(self.source.blocks(), self.shuffle, own_seed if seed is None else seed, epoch, self.rounds)

    def windows(self, plan: WindowPlan) -> dict[int, Cuts]:
        """The numbers of the windows that have rows left, and what is cut off them. Reads as many as it must."""
        if not self.limits:
            return dict.fromkeys(range(len(plan)), ())
        left: dict[int, Cuts] = {}
        for numbers in plan.rounds():
            left |= cut_windows(self.limits, numbers, partial(self._count_rows, plan))
        return left

    def count_rows(self, plan: WindowPlan, number: int, cuts: Cuts) -> int:
        """How many rows a window has in the end; reads it if it must."""
        return self._count_rows(plan, number, len(self.steps), cuts)

    def _count_rows(self, plan: WindowPlan, number: int, stage: int, cuts: Cuts) -> int:
        window = plan.window(number)
        counts = [block.rows for block in window.blocks]
        if cuts or None in counts or not all(step.keeps_count for step in self.steps[:stage]):
            return len(self.read(window, cuts, n_steps=stage))
        return sum(count for count in counts if count is not None)

    def read(
        self, window: Window, cuts: Cuts = (), on_bad: OnBadRow | None = None, n_steps: int | None = None
    ) -> Chunk:
        """The rows of a window, after all steps, or after so many."""
        rows = self._read_blocks(window, on_bad)
        if window.is_shuffled and len(rows):
            places = Permutation(len(rows), window.key).at(np.arange(len(rows)))
            first_is_columns = self.as_columns and not self.steps
            is_columns = first_is_columns or (bool(self.steps) and isinstance(self.steps[0], MapBatches))
            rows = shuffle_rows(rows, places, as_columns=is_columns)
        for stage, step in enumerate(self.steps[:n_steps]):
            rows = step.apply(_cut_rows(rows, stage, cuts), on_bad)
        return _cut_rows(rows, len(self.steps) if n_steps is None else n_steps, cuts)

    def _read_blocks(self, window: Window, on_bad: OnBadRow | None) -> Chunk:
        def tell(record: BadRecord) -> None:
            if on_bad is not None:
                on_bad(record.where, ValueError(record.error))

        tell_bad = None if on_bad is None else tell
        chunks = [chunk for block in window.blocks for chunk in self.source.read(block, 0, tell_bad)]
        return chunks[0] if len(chunks) == 1 else JoinedRows(chunks)

    def known_rows(self) -> int | None:
        """How many rows an epoch has, if that is known without reading."""
        counts = [block.rows for block in self.source.blocks()]
        if None in counts or self.limits or not all(step.keeps_count for step in self.steps):
            return None
        return sum(count for count in counts if count is not None) * self.rounds


def _cut_rows(rows: Chunk, stage: int, cuts: Cuts) -> Chunk:
    for cut in cuts:
        if cut.stage == stage:
            rows = rows.slice(cut.start, min(cut.stop, len(rows)))
    return rows


@dataclass
class _Iteration:
    epoch: int = 0


class Stream(IterableDataset[Any]):
    """Records of files or of a query, read piece by piece, in the workers; made by `read_text`, `read_csv` and others.

    Guarantees: in headrace's DataLoader, batches are a function of the data, the arguments, the seed and the epoch: the
    same for any number and kind of workers; every record comes exactly once over all workers and ranks; a loader goes
    on in the middle by reading one window again at most. In torch's DataLoader, every record comes exactly once over
    all workers and ranks, too.

    All methods give a new stream and leave this one as it is. Functions are called in the workers.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._iteration = _Iteration()

    @classmethod
    def from_blocks(
        cls, blocks: Sequence[Any], read: Callable[[Any], Iterable[Any]], *, counts: Sequence[int] | None = None
    ) -> Stream:
        """A stream from a source of your own.

        Args:
            blocks: in the natural order of the data: names, ranges, ids; each can be read alone.
            read: yields the rows of a block, the same whenever it is called.
            counts: how many rows each block has, if you know.

        Raises:
            ValueError: there are not as many counts as blocks.

        Examples:
            >>> stream = Stream.from_blocks([0, 10], lambda start: range(start, start + 3))
            >>> list(stream.map(lambda n: n * n))
            [0, 1, 4, 100, 121, 144]
        """
        return cls(Recipe(OwnSource(blocks, _checked(read), counts)))

    def explain(self, *, workers: int = 0, world: int = 1) -> str:
        """Says in words what is read, in which pieces, how well it is mixed, and which rank reads what."""
        return explain(self.recipe, workers=workers, world=world)

    def map(self, fn: Callable[[Any], Any]) -> Stream:
        """What `fn` makes of each row."""
        return self._then(Map(_checked(fn)))

    def filter(self, fn: Callable[[Any], Any]) -> Stream:
        """The rows for which `fn` is true."""
        return self._then(Filter(_checked(fn)))

    def flat_map(self, fn: Callable[[Any], Iterable[Any]]) -> Stream:
        """All that `fn` yields for each row."""
        return self._then(FlatMap(_checked(fn)))

    def map_batches(self, fn: Callable[[dict[str, Any]], dict[str, Any]], size: int = 1024) -> Stream:
        """What `fn` makes of columns: a dict of arrays and lists, of `size` rows or fewer; it may give more or fewer.

        Raises:
            ValueError: `size` is not positive.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}.")
        return self._then(MapBatches(_checked(fn), size))

    def pack(self, length: int) -> Stream:
        """Rows of `length` tokens, from rows that are sequences of tokens, one after the other.

        Raises:
            ValueError: `length` is not positive.
        """
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}.")
        return self._then(Pack(length))

    def shuffle(self, window: int = _WINDOW_BLOCKS, *, seed: int = 0) -> Stream:
        """The rows in random order, another one in every epoch.

        Blocks are taken in random order, and the rows of `window` of them, read at a time, are shuffled together.

        Args:
            seed: used if the loader has none.

        Raises:
            ValueError: `window` is not positive, or rows were transformed already: shuffle first, it costs less.
        """
        if window < 1:
            raise ValueError(f"window must be at least 1 block, got {window}.")
        if self.recipe.steps or self.recipe.limits:
            raise ValueError(
                "shuffle() must come before map(), filter() and the like: it is the reading that is mixed."
            )
        return Stream(replace(self.recipe, shuffle=Shuffle(window, seed)))

    def repeat(self, times: int) -> Stream:
        """The data so many times, as one epoch; each time in another order, if shuffled.

        Raises:
            ValueError: `times` is not positive.
        """
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}.")
        return Stream(replace(self.recipe, rounds=self.recipe.rounds * times))

    def take(self, n: int) -> Stream:
        """The first `n` rows, over all ranks.

        Raises:
            ValueError: `n` is negative, or the stream is repeated already.
        """
        return self._limit(0, n)

    def skip(self, n: int) -> Stream:
        """All rows but the first `n`, over all ranks.

        Raises:
            ValueError: `n` is negative, or the stream is repeated already.
        """
        return self._limit(n, None)

    def _limit(self, skip: int, take: int | None) -> Stream:
        if min(skip, take or 0) < 0:
            raise ValueError(f"The number of rows must be at least 0, got {skip or take}.")
        if self.recipe.rounds > 1:
            raise ValueError("take() and skip() must come before repeat(): they are of each round.")
        limit = Limit(len(self.recipe.steps), skip, take)
        return Stream(replace(self.recipe, limits=(*self.recipe.limits, limit)))

    def as_columns(self) -> Stream:
        """The same rows, whose batches are dicts of columns: slices of arrays, not collated row by row."""
        return Stream(replace(self.recipe, as_columns=True))

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration outside of headrace's DataLoader, which counts by itself."""
        self._iteration.epoch = epoch

    def _then(self, step: Step) -> Stream:
        return Stream(replace(self.recipe, steps=(*self.recipe.steps, step)))

    def __iter__(self) -> Iterator[Any]:
        """The rows of this process's windows: of its rank, and in a worker of torch's DataLoader of that worker."""
        shard = resolve_shard("auto", "allow")
        worker = get_worker_info()
        lane, lanes = (0, 1) if worker is None else (worker.id, worker.num_workers)
        rank, world = (0, 1) if shard is None else (shard.rank, shard.world)
        plan = self.recipe.plan(None, self._iteration.epoch)
        windows = list(self.recipe.windows(plan).items())
        for number, cuts in windows[rank + world * lane :: world * lanes]:
            yield from self.recipe.read(plan.window(number), cuts).rows()

    def __len__(self) -> int:
        """The number of rows, over all ranks.

        Raises:
            TypeError: it is not known without reading; see `count`.
        """
        n = self.recipe.known_rows()
        if n is None:
            raise TypeError("The number of rows of this stream is not known without reading it: count() does that.")
        return n

    def count(self) -> int:
        """The number of rows, over all ranks; reads the data if it must."""
        n = self.recipe.known_rows()
        if n is not None:
            return n
        plan = self.recipe.plan(None, 0)
        windows = self.recipe.windows(plan).items()
        return sum(self.recipe.count_rows(plan, number, cuts) for number, cuts in windows)

    def __repr__(self) -> str:
        recipe = self.recipe
        steps = "".join(f".{type(step).__name__.lower()}(...)" for step in recipe.steps)
        shuffled = "" if recipe.shuffle is None else f".shuffle({recipe.shuffle.blocks})"
        return f"Stream({type(recipe.source).__name__}){shuffled}{steps}"


def _checked(fn: Any) -> Any:
    if not callable(fn):
        raise TypeError(f"A function must be given, got {fn!r}.")
    return fn
