"""Several streams as one: at each position, a draw decides whose row comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headrace.base.generators import derive_key
from headrace.sources.source import Block, Chunk, FileVersion, OnBad
from headrace.streams.mix_plan import MixedBlocks, PartRows, Stop
from headrace.streams.schedules import Schedule
from headrace.streams.windows import Blocks

if TYPE_CHECKING:
    from headrace.streams.counts import RowCounts
    from headrace.streams.recipe import Ask, Recipe


class MixSource:
    """The rows of several recipes, mixed. A block is a range of positions; `MixedRows` says what it is made of.

    Attributes:
        recipes: of the streams.
        seed: used if the loader has none.
    """

    in_order = False

    def __init__(self, recipes: Sequence[Recipe], schedule: Schedule, stop: Stop, seed: int) -> None:
        self.recipes = tuple(recipes)
        self._schedule = schedule
        self._stop = stop
        self.seed = seed

    def lenient(self) -> MixSource:
        """The same, without files of its streams that cannot even be looked into."""
        return MixSource([recipe.lenient() for recipe in self.recipes], self._schedule, self._stop, self.seed)

    def plan_blocks(self, seed: int | None, epoch: int, counts: RowCounts, ask: Ask, *, must_end: bool) -> Blocks:
        """The blocks of an epoch. Rows are counted to find the windows that they lie in, and where a stream ends."""
        repeats = self._stop in ("longest", "never")
        parts = [
            PartRows(recipe, _seed_of_part(seed, i), epoch, part_counts, ask, repeats=repeats)
            for i, (recipe, part_counts) in enumerate(zip(self.recipes, counts.parts, strict=True))
        ]
        key = derive_key(self.seed if seed is None else seed, epoch, f"mix {self.seed}")
        return MixedBlocks(parts, self._schedule, self._stop, key)

    def blocks(self) -> Sequence[Block]:
        raise TypeError("The blocks of a mix are others in each epoch.")

    def versions(self) -> list[FileVersion]:
        return [file for recipe in self.recipes for file in recipe.source.versions()]

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        raise TypeError("The rows of a mix are read by the readers of its streams.")

    def describe(self) -> dict[str, Any]:
        formats = [recipe.source.describe().get("format", "data") for recipe in self.recipes]
        return {"format": f"a mix of {', '.join(formats)}", "stop": self._stop, "weights": list(self._schedule.at(0))}


def _seed_of_part(seed: int | None, number: int) -> int | None:
    """Streams of the same data must not be shuffled alike."""
    return None if seed is None else derive_key(seed, number, "part of a mix")
