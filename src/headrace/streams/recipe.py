"""What a stream is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from headrace.base.generators import derive_key
from headrace.sources.source import Block, Chunk
from headrace.streams.messages import Counted, CountRows
from headrace.streams.steps import Map, MapBatches, Step
from headrace.streams.tokens import Packing
from headrace.streams.windows import Blocks, EpochWindows, Limit, ListedBlocks, Share, Shuffle, Window, WindowPlan

if TYPE_CHECKING:
    from headrace.streams.counts import RowCounts

Ask: TypeAlias = Callable[[Sequence[CountRows]], list[Counted]]
"""Has rows counted: by the workers, or here."""


@runtime_checkable
class PlannedSource(Protocol):
    """A source whose blocks are others in each epoch, or are not known before."""

    @property
    def in_order(self) -> bool:
        """Whether blocks can be read in their natural order only."""
        ...

    def plan_blocks(self, seed: int | None, epoch: int, counts: RowCounts, ask: Ask, *, must_end: bool) -> Blocks:
        """The blocks of an epoch.

        Args:
            must_end: whether their number must be known, if there is an end.
        """
        ...


def _sized_blocks(source: Any, blocks: Blocks) -> Sequence[Block]:
    """Blocks that tell how long all are: of a source that has others in each epoch, the first one."""
    if not isinstance(source, PlannedSource):
        return source.blocks()  # type: ignore[no-any-return]
    try:
        first = blocks[0]
    except IndexError:
        return ()
    return [replace(first, rows=getattr(source, "block_rows", first.rows))]


@dataclass(frozen=True)
class Recipe:
    """What a stream is made of; plain enough to be sent to workers.

    Attributes:
        steps: done to the rows of each window.
        rounds: how often the data is gone through in an epoch; None for ever.
        limits: which rows of each round are left; they are in the order of their stages.
        packing: how rows, being sequences of tokens, become rows of one length at last.
        packed_steps: done to packed rows, as they become batches.
        as_columns: whether batches are made of columns, and not of rows.
        draws_in_collate: whether random numbers may be drawn while a batch is collated.
    """

    source: Any  # a Source; it may be a PlannedSource, too
    steps: tuple[Step, ...] = ()
    shuffle: Shuffle | None = None
    rounds: int | None = 1
    limits: tuple[Limit, ...] = ()
    packing: Packing | None = None
    packed_steps: tuple[Map, ...] = ()
    as_columns: bool = False
    draws_in_collate: bool = True

    def epoch_windows(
        self, seed: int | None, epoch: int, counts: RowCounts, ask: Ask, *, must_end: bool = False
    ) -> EpochWindows:
        """The windows of an epoch. Counts rows only if `take`, `skip` or a mix cannot be told otherwise.

        Args:
            seed: of the loader; None for the stream's own.
            must_end: whether the number of windows must be known, if there is an end.
        """
        plan = self._plan(seed, epoch, counts, ask, must_end=must_end or self.rounds != 1)

        def count_rows(number: int, stage: int, cuts: Any) -> int:
            share = Share(plan.window(number)._replace(cuts=cuts))
            return counts.count([share], ask, stage)[0]

        return EpochWindows(plan, self.limits, count_rows)

    def _plan(self, seed: int | None, epoch: int, counts: RowCounts, ask: Ask, *, must_end: bool) -> WindowPlan:
        own_seed = 0 if self.shuffle is None else self.shuffle.seed
        source, blocks = self.source, None
        if isinstance(source, PlannedSource):
            blocks = source.plan_blocks(seed, epoch, counts, ask, must_end=must_end)
        is_listed = blocks is None
        blocks = ListedBlocks(source.blocks()) if blocks is None else blocks
        return WindowPlan(
            blocks,
            self.shuffle,
            own_seed if seed is None else seed,
            epoch,
            self.rounds,
            in_order=not is_listed and source.in_order,
            per_window=self._per_window(blocks, counts, ask),
        )

    def _per_window(self, blocks: Blocks, counts: RowCounts, ask: Ask) -> int:
        """How many blocks make a window."""
        if self.shuffle is None:
            return 1

        def count_rows(block: Block) -> int:
            return counts.count([Share(Window(0, 0, (block,), 0))], ask, 0)[0]

        return self.shuffle.blocks_per_window(_sized_blocks(self.source, blocks), count_rows)

    def plan(self, seed: int | None, epoch: int) -> EpochWindows:
        """The windows of an epoch, for those who read them by themselves; rows are counted here, if they must be.

        Raises:
            TypeError: there is no end.
        """
        from headrace.streams.counts import RowCounts
        from headrace.streams.reading import count_in

        windows = self.epoch_windows(seed, epoch, RowCounts(self), count_in(self, seed), must_end=True)
        if windows.n_windows is None:
            raise TypeError("This stream has no end.")
        return windows

    def read(self, window: Window) -> Chunk:
        """The rows of a window of a plan."""
        from headrace.streams.reading import WindowReader

        return WindowReader(self).rows(Share(window)).whole()

    def stretch(self, window: Window, number: int) -> Window | None:
        """A part of a window whose file cannot be split: where it begins is a matter of bytes; None if it has none.

        What its rows become, random draws included, is the same whether it is read by itself or with the others.
        """
        if len(window.blocks) != 1 or window.is_shuffled or window.cuts or window.blocks[0].stop is not None:
            return None
        cut = getattr(self.source, "stretch", None)
        block = None if cut is None or not all(step.is_by_row for step in self.steps) else cut(window.blocks[0], number)
        if block is None:
            return None
        key = derive_key(window.key, number, "stretch") if number else window.key
        return window._replace(blocks=(block,), key=key, stretch=number)

    def look(self) -> None:
        """Find the files and their blocks, so that all processes which get this know the same.

        Raises:
            Exception: what the source cannot read.
        """
        if not isinstance(self.source, PlannedSource):
            self.source.blocks()
        for part in getattr(self.source, "recipes", ()):
            part.look()

    def for_batches(self, size: int) -> Recipe:
        """The same, for a loader of batches of so many rows."""
        return replace(self, source=self.source.for_batches(size)) if hasattr(self.source, "for_batches") else self

    @property
    def dealt_together(self) -> int:
        """How many rows that follow each other go to one rank: those of a batch that was drawn as a whole."""
        return getattr(self.source, "batch", 1)

    def lenient(self) -> Recipe:
        """The same, for a loader that leaves out what is damaged: also files that cannot even be looked into."""
        return replace(self, source=self.source.lenient()) if hasattr(self.source, "lenient") else self

    def reads_columns(self) -> bool:
        """Whether the rows of the source are wanted as columns, and need not be made into objects."""
        return isinstance(self.steps[0], MapBatches) if self.steps else self.as_columns

    @property
    def tells_rows(self) -> bool:
        """Whether the source knows how many rows its blocks have, and nothing is done to them but shuffling."""
        return getattr(self.source, "tells_rows", False) and not self.steps and self.packing is None

    def known_rows(self) -> int | None:
        """How many rows an epoch has, if that is known without reading."""
        keeps_count = all(step.keeps_count for step in self.steps) and self.packing is None
        if not keeps_count or self.limits or self.rounds is None or isinstance(self.source, PlannedSource):
            return None
        counts = [block.rows for block in self.source.blocks()]
        return None if None in counts else sum(count for count in counts if count is not None) * self.rounds
