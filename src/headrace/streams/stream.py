"""A stream: a source, and what is to be done to its rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from headrace.base.errors import check_count, warn_user
from headrace.base.html import code
from headrace.base.optional import loaded
from headrace.base.randomness import SampleRandomness
from headrace.base.typevars import Row
from headrace.base.world import get_worker_info
from headrace.data.dataset import IterableDataset
from headrace.order.shard import Shard, resolve_shard
from headrace.sources.cache import size_in_bytes
from headrace.sources.chunks import ObjectChunk
from headrace.sources.live import CalledConnector, Connector
from headrace.sources.retry import Retries
from headrace.sources.source import Chunk
from headrace.streams.concurrency import EventLoops, is_async
from headrace.streams.counts import RowCounts
from headrace.streams.explain import explain
from headrace.streams.fitting import FITS, Fit, PackFit
from headrace.streams.live import LiveSource
from headrace.streams.rank_windows import Loading, RankWindows, UnknownCountError, refuse_to_count
from headrace.streams.reading import WindowReader, count_in
from headrace.streams.recipe import Ask, Recipe
from headrace.streams.shown import NAMES, shown_recipe
from headrace.streams.steps import Filter, FlatMap, Map, MapAtOnce, MapBatches, Step
from headrace.streams.tokens import Packing
from headrace.streams.user_sources import IterableSource, OwnSource, Sharing
from headrace.streams.windows import EmptyWindows, Limit, Share, Shuffle

__all__ = ["Recipe", "Stream"]

U = TypeVar("U")

_FEWEST_ROWS = 64  # in a window: who asks for fewer means blocks, as windows once were


@dataclass
class _Iteration:
    """What a stream remembers of being gone through without a loader."""

    epoch: int = 0
    counts: RowCounts | None = field(default=None, repr=False)


_READ_S = 0.01  # before rows are given


class Stream(IterableDataset[Row]):
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
        cls, blocks: Iterable[Any], read: Callable[[Any], Iterable[U]], *, counts: Iterable[int] | None = None
    ) -> Stream[U]:
        """A stream from a source of your own.

        Args:
            blocks: in the natural order of the data: names, ranges, ids; each can be read alone.
            read: yields the rows of a block, the same whenever it is called.
            counts: how many rows each block has, if you know; a block that has another number is a `RecordError`.

        Raises:
            TypeError: `blocks` or `counts` cannot be gone through, or `read` be called.
            ValueError: there are not as many counts as blocks, or one is negative.

        Examples:
            >>> stream = Stream.from_blocks([0, 10], lambda start: range(start, start + 3))
            >>> list(stream.map(lambda n: n * n))
            [0, 1, 4, 100, 121, 144]
        """
        return cls(Recipe(OwnSource(blocks, _checked(read), counts)))  # type: ignore[return-value]

    @classmethod
    def from_iterable(
        cls,
        rows: Iterable[U] | Callable[[], Iterable[U]],
        *,
        shard: Sharing = "stride",
        block_rows: int = 1024,
    ) -> Stream[U]:
        """A stream of the rows of any iterable, such as an `IterableDataset`: each row once over all workers and ranks.

        An iterable can only be read from its beginning. So every worker goes through all of it, and leaves out the rows
        of the others without transforming them; or, where that is too much work, the loader's process reads it alone,
        and sends rows to the workers. With `shuffle`, whole blocks of
        `block_rows` rows are shuffled together. To go on in
        the middle, it is run forward; with "dispatch" it goes there at once, if it has `state_dict` and
        `load_state_dict`.

        Args:
            rows: an iterable, or a function that returns one: a generator function, for example. It must give the same
                rows each time, and not ask which worker it is in.
            shard: "stride" lets every worker read all, and "dispatch" the loader's process.
            block_rows: how many rows go to a worker at a time.

        Raises:
            TypeError: `rows` is neither, or can be gone through only once.
            ValueError: `shard` or `block_rows` is wrong.

        Examples:
            >>> list(Stream.from_iterable(lambda: (n * n for n in range(4))).filter(bool))
            [1, 4, 9]
        """
        if not isinstance(rows, Iterable) and not callable(rows):
            raise TypeError(f"from_iterable needs an iterable, or a function that returns one, got {rows!r}.")
        if isinstance(rows, Iterator) and not isinstance(rows, IterableDataset):
            raise TypeError(
                f"{type(rows).__name__} can be gone through only once: pass a function that makes it, such as "
                "`lambda: map(fn, data)`."
            )
        if shard not in ("stride", "dispatch"):
            raise ValueError(f"shard must be 'stride' or 'dispatch', got {shard!r}.")
        check_count("block_rows", block_rows, 1)
        return cls(Recipe(IterableSource(rows, shard, block_rows)))  # type: ignore[return-value]

    @classmethod
    def live(
        cls,
        connect: Connector | Callable[[Mapping[str, Any]], Iterable[Any]],
        *,
        positions: bool = False,
        commit: Callable[[Mapping[str, Any]], None] | None = None,
        at_end: Literal["stop", "reconnect"] = "stop",
        retries: Retries | None = None,
    ) -> Stream:
        """A stream of rows that are still arriving, handed out as they come: from a socket, a queue, a message log.

        The loader's process reads the one connection, in a thread of its own, and deals rows to the workers, which
        do the steps and collate. If nothing is read for a while, the thread stops reading: back pressure.

        Args:
            connect: a function that opens the connection and returns an iterable of rows, such as a generator
                function; or a `Connector`. It is called with the positions reached so far, by partition, and again
                after a connection was lost (an `OSError`, for example), with a growing delay.
            positions: whether rows are `LiveRow`s, whose positions go into `state_dict()`; `connect` then reads on
                after the ones that it is given. Without them, rows in flight when a run dies are lost.
            commit: acknowledges rows up to given positions, for `loader.commit(state)`.
            at_end: what the end of the iterable means: "stop" ends the stream, "reconnect" is a lost connection.
            retries: how often to connect again; by default for about ten minutes, counted from the last row.

        Raises:
            TypeError: `connect` cannot be called.

        Examples:
            >>> def connect(positions):
            ...     first = positions.get("", -1) + 1
            ...     return (LiveRow(n * n, position=n) for n in range(first, 5))
            >>> from headrace import LiveRow
            >>> list(Stream.live(connect, positions=True).take(3))
            [0, 1, 4]
        """
        if not isinstance(connect, Connector):
            called = CalledConnector(_checked(connect), commit, has_positions=positions, at_end=at_end)
            return cls(Recipe(LiveSource(called, retries)))
        return cls(Recipe(LiveSource(connect, retries)))

    def explain(self, *, workers: int = 0, world: int = 1) -> str:
        """Says in words what is read, in which pieces, how well it is mixed, and who reads what.

        Args:
            workers: of each rank, as supposed; batches do not depend on it.
            world: how many ranks are supposed.

        Raises:
            ValueError: `workers` is negative, or `world` not positive.
        """
        return explain(self.recipe, self._counts, workers=workers, world=world)

    def map(self, fn: Callable[[Row], U], *, threads: int | None = None, at_once: int = 64) -> Stream[U]:
        """What `fn` makes of each row; an `async def` function is awaited, for several rows at a time.

        Guarantees: with `threads`, rows come in their order, and results, errors and what is drawn from
        `headrace.rng()` are those without. Where rows draw, they take turns from the first draw on: wait first, then
        draw. Draws from global generators are not repeatable in threads.

        Args:
            threads: how many threads of each worker call `fn`: for functions that wait (for a disk, a server), or that
                release the GIL.
            at_once: how many rows of a coroutine function are under way in each worker. Each has random numbers of its
                own from `headrace.rng()`, and all of a worker share one event loop.

        Raises:
            TypeError: `fn` cannot be called.
            ValueError: `threads` or `at_once` is not positive, or `threads` are given for an `async def` function.

        Examples:
            >>> list(Stream.from_blocks([0], lambda _: range(4)).map(lambda n: n * n, threads=2))
            [0, 1, 4, 9]
        """
        if is_async(_checked(fn)):
            check_count("at_once", at_once, 1)
            if threads is not None:
                raise ValueError("An async def function needs no threads: pass at_once= to say how many rows wait.")
            return self._then(MapAtOnce(fn, at_once, EventLoops()))
        if threads is None:
            return self._then(Map(fn))
        check_count("threads", threads, 1)
        return self._then(MapAtOnce(fn, threads))

    def filter(self, fn: Callable[[Row], Any]) -> Stream[Row]:
        """The rows for which `fn` is true."""
        return self._then(Filter(_checked(fn)))

    def flat_map(self, fn: Callable[[Row], Iterable[U]]) -> Stream[U]:
        """All that `fn` yields for each row."""
        return self._then(FlatMap(_checked(fn)))

    def map_batches(self, fn: Callable[[dict[str, Any]], dict[str, Any]], size: int = 1024) -> Stream[Any]:
        """What `fn` makes of columns: a dict of arrays and lists, of `size` rows or fewer; it may give more or fewer.

        Raises:
            ValueError: `size` is not positive.
        """
        check_count("size", size, 1)
        return self._then(MapBatches(_checked(fn), size))

    def pack(
        self,
        length: int,
        *,
        fit: Fit | None = None,
        segments: bool = False,
        drop_rest: bool = False,
        padding_value: Any = None,
        at_once: int = 1024,
    ) -> Stream[Any]:
        """Rows of `length` tokens, of rows that are sequences of tokens: lists, arrays, or dicts of them.

        Batches of numbers are `[batch, length]` arrays, one for each field of a dict. Without `fit`, sequences follow
        each other, and are cut where a row is full: rows go on over the borders of blocks and windows, as one reader
        would cut them. Only the very last one may be shorter, on each rank; in a batch of arrays, it is filled up.
        After it, only `map` may come, which gets a packed row.

        With `fit`, only sequences longer than a row are cut. Some `at_once` sequences of a window, longest first, are
        each put into the first row that has room, or into the one that it fills best. Rows are dicts with "tokens" (or
        the fields of a dict), "segments" and "positions", which any step may follow.

        Args:
            fit: None, "first" or "best".
            segments: give "segments", the number of each token's sequence in its row, from 1 on and 0 where it is
                filled up, and "positions" in them, from 0 on, without `fit`, too.
            drop_rest: leave a shorter last row out.
            padding_value: what is filled up with; 0 by default. If it is given, rows that your own functions get are
                filled up, too.
            at_once: how many sequences are fitted together: the more, the fuller the rows.

        Raises:
            ValueError: `length` or `at_once` is not positive, `fit` is unknown, or rows are packed already.

        Examples:
            >>> list(Stream.from_blocks(["ab", "cde"], lambda word: [word]).pack(2))
            [['a', 'b'], ['c', 'd'], ['e']]
            >>> for row in Stream.from_blocks([0], lambda _: [[3] * 3, [5] * 5, [2] * 2]).pack(5, fit="best"):
            ...     print(row["tokens"], row["segments"], row["positions"])
            [3 3 3 2 2] [1 1 1 2 2] [0 1 2 0 1]
            [5 5 5 5 5] [1 1 1 1 1] [0 1 2 3 4]
        """
        check_count("length", length, 1)
        check_count("at_once", at_once, 1)
        self._refuse_after_packing("pack")
        self._refuse_for_batches("pack")
        if fit is None:
            return Stream(replace(self.recipe, packing=Packing(length, drop_rest, segments, padding_value)))
        if fit not in FITS:
            raise ValueError(f"fit must be None, 'first' or 'best', got {fit!r}.")
        if drop_rest:
            raise ValueError("drop_rest is for rows that are cut: with fit=, any row may have room left.")
        return self._then(PackFit(length, fit, at_once, 0 if padding_value is None else padding_value))

    def shuffle(
        self,
        window: int | None = None,
        *,
        blocks: int | None = None,
        seed: int = 0,
        memory: int | str = "2 GB",
    ) -> Stream[Row]:
        """The rows in random order, another one in every epoch.

        The blocks of the data are taken in random order, and some of them, read at a time, have their rows shuffled
        together: a window.

        Args:
            window: how many rows a window has, about: as many blocks as hold them on average, but at least one. Where
                nobody knows how many rows blocks have, those of one block are counted.
            blocks: how many blocks a window has. Pass this or `window`; without both, it is 8 blocks, or as many as
                fit into `memory`.
            seed: used if the loader has none.
            memory: what a window may take, as a number of bytes or a string like "2 GB"; it is estimated from the
                sizes of blocks, where these are known. Each worker has one or two windows at a time.

        Raises:
            ValueError: `window` or `blocks` is not positive, or both are given; or rows were transformed already:
                shuffle first, it costs less. Before the first row is read: a window does not fit into `memory`.
        """
        if window is not None:
            check_count("window", window, 1)
            if blocks is not None:
                raise ValueError(f"Pass window= in rows, or blocks=, not both; got {window} and {blocks}.")
            if window < _FEWEST_ROWS:
                warn_user(
                    f"shuffle({window}) shuffles about {window} rows at a time: a window is a number of rows. For "
                    f"windows of {window} blocks, pass blocks={window}."
                )
        if blocks is not None:
            check_count("blocks", blocks, 1)
        self._refuse_after_packing("shuffle")
        self._refuse_for_batches("shuffle")
        if isinstance(self.recipe.source, LiveSource) and window is None:
            raise ValueError("shuffle() of a live stream needs a window: how many rows to wait for and shuffle.")
        if self.recipe.steps or self.recipe.limits:
            raise ValueError(
                "shuffle() must come before map(), filter() and the like: it is the reading that is mixed."
            )
        return Stream(replace(self.recipe, shuffle=Shuffle(blocks, seed, window, size_in_bytes(memory, "memory"))))

    def repeat(self, times: int | None = None) -> Stream[Row]:
        """The data so many times, as one epoch; each time in another order, if shuffled; a mix comes as it is.

        Args:
            times: None for ever.

        Raises:
            ValueError: `times` is not positive.
        """
        if times is not None:
            check_count("times", times, 1)
        self._refuse_live("repeat", "it has no end")
        rounds = self.recipe.rounds
        return Stream(replace(self.recipe, rounds=None if times is None or rounds is None else rounds * times))

    def take(self, n: int) -> Stream[Row]:
        """The first `n` rows, over all ranks.

        Raises:
            ValueError: `n` is negative, or the stream is repeated already.
        """
        check_count("The number of rows", n, 0)
        return self._limit(0, n)

    def skip(self, n: int) -> Stream[Row]:
        """All rows but the first `n`, over all ranks.

        Raises:
            ValueError: `n` is negative, or the stream is repeated already.
        """
        check_count("The number of rows", n, 0)
        return self._limit(n, None)

    def _limit(self, skip: int, take: int | None) -> Stream[Row]:
        self._refuse_after_packing("take() and skip")
        if self.recipe.steps:
            self._refuse_live("take() and skip", "call them before map(), filter() and the like")
        if self.recipe.rounds != 1:
            raise ValueError("take() and skip() must come before repeat(): they are of each round.")
        limit = Limit(len(self.recipe.steps), skip, take)
        return Stream(replace(self.recipe, limits=(*self.recipe.limits, limit)))

    def as_columns(self) -> Stream[Any]:
        """The same rows, whose batches are dicts of columns: slices of arrays, not collated row by row."""
        return Stream(replace(self.recipe, as_columns=True))

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration outside of headrace's DataLoader, which counts by itself.

        Raises:
            ValueError: it is negative.
        """
        check_count("epoch", epoch, 0)
        self._iteration.epoch = epoch

    def _then(self, step: Step) -> Stream[Any]:
        if self.recipe.packing is not None and isinstance(step, Map):
            return Stream(replace(self.recipe, packed_steps=(*self.recipe.packed_steps, step)))
        self._refuse_after_packing(NAMES[type(step)])
        return Stream(replace(self.recipe, steps=(*self.recipe.steps, step)))

    def _refuse_live(self, method: str, why: str) -> None:
        if isinstance(self.recipe.source, LiveSource):
            raise ValueError(f"{method}() does not fit a live stream here: {why}.")

    def _refuse_after_packing(self, method: str) -> None:
        if self.recipe.packing is not None:
            raise ValueError(
                f"{method}() must come before pack(), which only map() may follow; or do it in the collate_fn."
            )

    def _refuse_for_batches(self, method: str) -> None:
        if getattr(self.recipe.source, "draws_batches", False):
            raise ValueError(
                f"{method}() would change the rows of batches that mix() has drawn as a whole: do it to its streams "
                "before, or choose another draw=."
            )

    def __iter__(self) -> Iterator[Row]:
        """The rows of this process: of its rank, and in a worker of torch's DataLoader of that worker."""
        found = resolve_shard("auto", "allow") or Shard()
        if found.world > 1:
            _refuse_second_dealer()
        worker = get_worker_info()
        lane, lanes = (0, 1) if worker is None else (worker.id, worker.num_workers)
        shard = Shard(found.rank + found.world * lane, found.world * lanes, "allow")
        # Several readers of one window must draw the same random numbers.
        randomness = SampleRandomness(0, repeats=False) if shard.world > 1 else None
        reader = WindowReader(self.recipe, randomness)
        loading = Loading(self.recipe, 1, False, None, shard)
        live = loading.open_live()
        shares = RankWindows(loading, self._counts, self._iteration.epoch, live=live)
        try:
            yield from self._rows_of(shares, reader)
        finally:
            if live is not None:
                live.close()

    def _rows_of(self, shares: RankWindows, reader: WindowReader) -> Iterator[Any]:
        packing, empty = self.recipe.packing, EmptyWindows(shares.most_empty)
        rest: Chunk = ObjectChunk([])
        for share in shares:
            read = reader.rows(share)
            while not read.is_read:
                for chunk in read.some(_READ_S):
                    if packing is None:
                        yield from chunk.rows()
                    else:
                        whole, rest = packing.split(rest, chunk)
                        yield from self._packed(whole)
            if shares.live is not None:
                shares.live.given(share.window.number + 1, 0)
            if read.facts.is_last or empty.are_all(read.end):
                break
        if packing is not None and not packing.drops_rest:
            yield from self._packed(rest)

    def _packed(self, tokens: Chunk) -> list[Any]:
        """Packed rows, after the steps that follow."""
        packing, steps = self.recipe.packing, self.recipe.packed_steps
        assert packing is not None
        rows: Chunk = ObjectChunk(packing.rows(tokens, as_arrays=bool(steps)))
        for step in steps:
            rows = step.apply(rows, _raise)
        made: list[Any] = rows.rows()
        return made

    def __getitem__(self, index: Any) -> Any:
        """There are no numbers by which rows could be had.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"A stream is read from its beginning, not by index, got {index!r}. Write next(iter(stream)) for its first "
            "row, or list(stream.take(n)) for the first n; for batches, pass it to a DataLoader."
        )

    @property
    def _counts(self) -> RowCounts:
        if self._iteration.counts is None:
            self._iteration.counts = RowCounts(self.recipe)
        return self._iteration.counts

    def __len__(self) -> int:
        """The number of rows, over all ranks.

        Raises:
            TypeError: it is not known without reading, see `count`; or there is no end.
        """
        known = self.recipe.known_rows()  # at once, even for many windows
        if known is not None:
            return known
        try:
            return self._n_rows(refuse_to_count, must_end=False)
        except UnknownCountError:
            raise TypeError(
                "The number of rows of this stream is not known without reading it: count() does that."
            ) from None

    def count(self) -> int:
        """The number of rows, over all ranks; reads the data if it must, and remembers the number.

        Raises:
            TypeError: there is no end.
        """
        return self._n_rows(count_in(self.recipe, None), must_end=True)

    def _n_rows(self, ask: Ask, *, must_end: bool) -> int:
        recipe = self.recipe
        windows = recipe.epoch_windows(None, self._iteration.epoch, self._counts, ask, must_end=must_end)
        if windows.n_windows is None:
            raise TypeError("This stream has no end, or nobody knows where it is.")
        n_rows = sum(self._counts.count([Share(window)], ask)[0] for window in windows)
        if recipe.packing is None:
            return n_rows
        length = recipe.packing.length
        return n_rows // length if recipe.packing.drops_rest else -(-n_rows // length)

    def __repr__(self) -> str:
        return shown_recipe(self.recipe)

    def _repr_html_(self) -> str:
        return code(repr(self).replace(").", ")\n  ."))


def _raise(index: int, row: Any, error: Exception) -> None:
    raise error


def _checked(fn: Any) -> Any:
    if not callable(fn):
        raise TypeError(f"A function must be given, got {fn!r}.")
    return fn


def _is_dealt_again() -> bool:
    """Whether the stream is inside the class by which Accelerate and transformers deal out iterables.

    In a worker that was not forked, nothing else is known of them.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "__iter__" and type(frame.f_locals.get("self")).__name__ == "IterableDatasetShard":
            return True
    return False


def _refuse_second_dealer() -> None:
    """See that nobody else deals out the rows of a stream.

    Raises:
        RuntimeError: Accelerate is at work, and gives each process a part of what it finds in the loaders it prepares.
    """
    accelerate = loaded("accelerate.state")
    if _is_dealt_again() or (accelerate is not None and accelerate.PartialState._shared_state):
        raise RuntimeError(
            "Every process would get a part of its part: a stream is dealt out to processes already, and Accelerate "
            "(or the Hugging Face Trainer) does that again. Load the stream with headrace.DataLoader, and prepare that "
            "with headrace.integrations.accelerate.prepare, or pass it to a LoaderTrainerMixin."
        )
