"""The epochs of a stream: which windows a rank reads, from which row on, and how many batches it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any

from headrace.base.errors import StateError
from headrace.base.progress import Progress
from headrace.base.state import check_equal
from headrace.order.shard import Shard
from headrace.streams.stream import Recipe
from headrace.streams.windows import WindowPlan


class WindowCourse:
    """The windows of one rank, epoch by epoch.

    Args:
        batch_size: None for single rows.
        seed: of the loader; None for the stream's own.
    """

    def __init__(
        self, recipe: Recipe, *, batch_size: int | None, drop_last: bool, seed: int | None, shard: Shard
    ) -> None:
        self._recipe = recipe
        self._size = batch_size or 1
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._seed = seed
        self._shard = shard
        self._counts: tuple[int, list[int]] | None = None

    def begin(self, progress: Progress) -> Iterator[int]:
        own = self._own_windows(len(self._recipe.plan(self._seed, progress.epoch)))
        window, _ = progress.start.get("place", (0, 0))
        numbers = iter(() if window < 0 else (number for number in own if number >= window))
        if self._shard.world > 1 and self._shard.even in ("pad", "repeat"):
            return chain(numbers, chain.from_iterable(repeat(own))) if own else iter(())
        return numbers

    def most_batches(self, epoch: int) -> int | None:
        """How many batches this rank gives, where the others' numbers matter; None if it gives all that it has."""
        if self._shard.world == 1 or self._shard.even == "allow":
            return None
        batches = [self._batches_of(rank, epoch) for rank in range(self._shard.world)]
        return min(batches) if self._shard.even == "drop" else max(batches)

    def _own_windows(self, n: int) -> range:
        return range(self._shard.rank, n, self._shard.world)

    def _batches_of(self, rank: int, epoch: int) -> int:
        n = sum(self._window_rows(epoch)[rank :: self._shard.world])
        return n // self._size if self._drop_last else -(-n // self._size)

    def _window_rows(self, epoch: int) -> list[int]:
        """The number of rows of every window; those that nobody knows are read."""
        if self._counts is None or self._counts[0] != epoch:
            plan = self._recipe.plan(self._seed, epoch)
            self._counts = (epoch, [self._count(plan, number) for number in range(len(plan))])
        return self._counts[1]

    def _count(self, plan: WindowPlan, number: int) -> int:
        window = plan.window(number)
        known = [block.rows for block in window.blocks]
        if None not in known and all(step.keeps_count for step in self._recipe.steps):
            return sum(rows for rows in known if rows is not None)
        return len(self._recipe.read(window))

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
        if not progress.is_over and progress.place is not None:
            saved["place"] = list(progress.place)
        return saved

    def _described(self) -> dict[str, Any]:
        files = [[file.path, file.size, file.version] for file in self._recipe.source.versions()]
        return {
            "seed": self._seed,
            "shard": [self._shard.rank, self._shard.world],
            "n_blocks": len(self._recipe.source.blocks()),
            "files": files if len(files) <= _MOST_FILES else len(files),
        }

    def check(self, start: Mapping[str, Any], *, is_edge: bool) -> None:
        check_equal(start["described"], self._described())
        if is_edge:
            return
        window, row = start["place"]
        if type(window) is not int or type(row) is not int or row < 0:
            raise StateError(f"The state is damaged: place must be two ints, got {start['place']!r}.")

    def seek(self, batch: int) -> dict[str, Any]:
        return {"described": self._described(), "discard": batch}


_MOST_FILES = 100  # that are listed in a state; of more, only their number is
