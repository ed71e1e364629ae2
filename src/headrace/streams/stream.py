"""A stream: a source, and what is to be done to its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

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
from headrace.sources.source import Chunk
from headrace.streams.counts import RowCounts
from headrace.streams.explain import explain
from headrace.streams.rank_windows import Loading, RankWindows, UnknownCountError, refuse_to_count
from headrace.streams.reading import WindowReader, count_in
from headrace.streams.recipe import Ask, Recipe
from headrace.streams.shown import NAMES, shown_recipe
from headrace.streams.steps import Filter, FlatMap, Map, MapBatches, Step
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

    def explain(self, *, workers: int = 0, world: int = 1) -> str:
        """Says in words what is read, in which pieces, how well it is mixed, and who reads what.

        Args:
            workers: of each rank, as supposed; batches do not depend on it.
            world: how many ranks are supposed.

        Raises:
            ValueError: `workers` is negative, or `world` not positive.
        """
        return explain(self.recipe, self._counts, workers=workers, world=world)

    def map(self, fn: Callable[[Row], U]) -> Stream[U]:
        """What `fn` makes of each row."""
        return self._then(Map(_checked(fn)))

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

    def pack(self, length: int, *, drop_rest: bool = False) -> Stream[Any]:
        """Rows of `length` tokens, from rows that are sequences of tokens, one after the other.

        It comes last. Rows go on over the borders of blocks and windows, as one reader would cut them; only the very
        last one may be shorter, on each rank.

        Args:
            drop_rest: leave a shorter last row out, so that all have one length.

        Raises:
            ValueError: `length` is not positive, or rows are packed already.

        Examples:
            >>> list(Stream.from_blocks(["ab", "cde"], lambda word: [word]).pack(2))
            [['a', 'b'], ['c', 'd'], ['e']]
        """
        check_count("length", length, 1)
        self._refuse_after_packing("pack")
        return Stream(replace(self.recipe, packing=Packing(length, drop_rest)))

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
        self._refuse_after_packing(NAMES[type(step)])
        return Stream(replace(self.recipe, steps=(*self.recipe.steps, step)))

    def _refuse_after_packing(self, method: str) -> None:
        if self.recipe.packing is not None:
            raise ValueError(f"{method}() must come before pack(), which comes last; or do it in the collate_fn.")

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
        shares = RankWindows(Loading(self.recipe, 1, False, None, shard), self._counts, self._iteration.epoch)
        packing, empty = self.recipe.packing, EmptyWindows(shares.most_empty)
        rest: Chunk = ObjectChunk([])
        for share in shares:
            read = reader.rows(share)
            while not read.is_read:
                for chunk in read.some(_READ_S):
                    if packing is None:
                        yield from chunk.rows()
                    else:
                        rows, rest = packing.split(rest, chunk)
                        yield from rows
            if read.facts.is_last or empty.are_all(read.end):
                break
        if packing is not None and not packing.drops_rest:
            yield from packing.rows(rest)

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


def _checked(fn: Any) -> Any:
    if not callable(fn):
        raise TypeError(f"A function must be given, got {fn!r}.")
    return fn


def _refuse_second_dealer() -> None:
    """See that nobody else deals out the rows of a stream.

    Raises:
        RuntimeError: Accelerate is at work, and gives each process a part of what it finds in the loaders it prepares.
    """
    accelerate = loaded("accelerate.state")
    if accelerate is not None and accelerate.PartialState._shared_state:
        raise RuntimeError(
            "Every process would get a part of its part: a stream is dealt out to processes already, and Accelerate "
            "(or the Hugging Face Trainer) does that again. Load the stream with headrace.DataLoader, and prepare that "
            "with headrace.integrations.accelerate.prepare, or pass it to a LoaderTrainerMixin."
        )
