"""The epochs of a stream: which windows a rank reads, from which row on, and how many batches it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice, repeat
from typing import Any

from headrace.base.errors import StateError
from headrace.base.progress import Progress
from headrace.base.state import check_equal
from headrace.order.shard import Shard
from headrace.streams.fetch import WindowRef
from headrace.streams.stream import Recipe


class WindowCourse:
    """The windows of one rank, epoch by epoch.

    Args:
        count: reads a window and counts its rows; needed where ranks must agree, and nobody knows.
        batch_size: None for single rows.
        seed: of the loader; None for the stream's own.
    """

    def __init__(
        self,
        recipe: Recipe,
        count: Callable[[WindowRef], int],
        *,
        batch_size: int | None,
        drop_last: bool,
        seed: int | None,
        shard: Shard,
    ) -> None:
        self._recipe = recipe
        self._size = batch_size or 1
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._seed = seed
        self._shard = shard
        self._count_rows = count
        self._counts: dict[WindowRef, int] = {}

    def begin(self, progress: Progress) -> Iterator[WindowRef]:
        own = self._windows_of(self._shard.rank, progress.epoch)
        first, _ = progress.start.get("place", (0, 0))
        left = iter([window for window in own if 0 <= first <= window.number])
        if self._shard.world > 1 and self._shard.even in ("pad", "repeat") and any(map(self._count, own)):
            return chain(left, chain.from_iterable(repeat(own)))
        return left

    def _windows_of(self, rank: int, epoch: int) -> list[WindowRef]:
        """Every `world`-th window; or every `world`-th row of all, where windows are too few to be shared evenly."""
        windows = self._recipe.windows(self._recipe.plan(self._seed, epoch))
        world = self._shard.world
        if len(windows) < _FEWEST_PER_RANK * world:
            # Which rank begins goes round, too: else the first one had the only row of every window.
            return [WindowRef(epoch, number, cuts, (rank - number) % world, world) for number, cuts in windows.items()]
        return [WindowRef(epoch, number, cuts) for number, cuts in islice(windows.items(), rank, None, world)]

    def most_batches(self, epoch: int) -> int | None:
        """How many batches this rank gives, where the others' numbers matter; None if it gives all that it has."""
        if self._shard.world == 1 or self._shard.even == "allow":
            return None
        batches = [self._batches_of(rank, epoch) for rank in range(self._shard.world)]
        return min(batches) if self._shard.even == "drop" else max(batches)

    def _batches_of(self, rank: int, epoch: int) -> int:
        n = sum(map(self._count, self._windows_of(rank, epoch)))
        return n // self._size if self._drop_last else -(-n // self._size)

    def _count(self, window: WindowRef) -> int:
        """How many rows a window has in the end; read if nobody knows."""
        recipe = self._recipe
        if window not in self._counts:
            blocks = recipe.plan(self._seed, window.epoch).window(window.number).blocks
            known = [block.rows for block in blocks]
            if window.cuts or None in known or not all(step.keeps_count for step in recipe.steps):
                self._counts[window] = self._count_rows(window)
            else:
                n = sum(rows for rows in known if rows is not None)
                self._counts[window] = max(0, -(-(n - window.first) // window.world))
        return self._counts[window]

    def n_batches(self, epoch: int) -> int:
        """How many batches this rank gives.

        Raises:
            TypeError: it is not known without reading.
        """
        if self._recipe.known_rows() is None:
            raise TypeError("The number of rows of this stream is not known without reading it: count() does that.")
        limit = self.most_batches(epoch)
        return self._batches_of(self._shard.rank, epoch) if limit is None else limit

    def restore(self, start: Mapping[str, Any]) -> None:
        """Nothing lasts longer than an epoch."""

    def save(self, progress: Progress) -> dict[str, Any]:
        saved: dict[str, Any] = {"described": self._described()}
        place = progress.start.get("place") if progress.place is None else progress.place
        if not progress.is_over and place is not None:
            saved["place"] = list(place)
        return saved

    def _described(self) -> dict[str, Any]:
        recipe = self._recipe
        files = [[file.path, file.size, file.version] for file in recipe.source.versions()]
        return {
            "seed": self._seed,
            "shard": [self._shard.rank, self._shard.world],
            "batch_size": self._batch_size if self._shard.world > 1 else "any",
            "n_blocks": len(recipe.source.blocks()),
            "files": files if len(files) <= _MOST_FILES else len(files),
            "shuffle": None if recipe.shuffle is None else [recipe.shuffle.blocks, recipe.shuffle.seed],
            "steps": [type(step).__name__ for step in recipe.steps],
            "limits": [[limit.stage, limit.skip, limit.take] for limit in recipe.limits],
            "rounds": recipe.rounds,
        }

    def check(self, start: Mapping[str, Any], *, is_edge: bool) -> None:
        check_equal(start["described"], self._described())
        if is_edge or "discard" in start:
            return
        window, row = start["place"]
        if type(window) is not int or type(row) is not int or row < 0:
            raise StateError(f"The state is damaged: place must be two ints, got {start['place']!r}.")

    def seek(self, batch: int) -> dict[str, Any]:
        return {"described": self._described(), "discard": batch}


_FEWEST_PER_RANK = 8  # windows
_MOST_FILES = 100  # that are listed in a state; of more, only their number is
