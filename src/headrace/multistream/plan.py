"""What all workers of a loader agree on: who reads which positions, in which order, and what a batch is to hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from headrace.base.indices import Indices
from headrace.base.keys import derive_key
from headrace.multistream.assign import (
    Assign,
    ListedPieces,
    PieceOrder,
    ShuffledPieces,
    Shuffles,
    following_pieces,
    items_of,
    partition,
)
from headrace.multistream.library import Library


@dataclass(frozen=True)
class Layout:
    """What a batch holds.

    Attributes:
        seq_len: steps of a chunk; None for batches of single steps.
        targets: whether the items that follow are given too, with `ignore_index` where none does.
        is_first: whether it is told where sequences begin.
        mask: whether it is told where there are items.
    """

    seq_len: int | None = None
    batch_first: bool = False
    targets: bool = False
    ignore_index: int = -100
    is_first: bool = False
    mask: bool = False

    @property
    def length(self) -> int:
        """Steps from one batch to the next."""
        return self.seq_len or 1

    @property
    def is_plain(self) -> bool:
        """Whether a batch is nothing but data."""
        return not (self.targets or self.is_first or self.mask)

    @property
    def axis(self) -> int:
        """The dimension of positions in a block, whose first one is that of batches."""
        return 1 if self.seq_len is None or self.batch_first else 2


@dataclass(frozen=True)
class Plan:
    """Which position reads what.

    Attributes:
        batch_size: positions over all ranks.
        parts: the positions of this rank, cut for its workers.
        cycle: whether positions go on after their share.
        gives_items: whether batches are lists of what the sequences give, which end with the first that ends: the form
            of datasets that give parts of batches.
    """

    library: Library
    layout: Layout
    assign: Assign
    batch_size: int
    parts: tuple[range, ...]
    seed: int
    cycle: bool
    gives_items: bool = False

    def order(self, epoch: int, position: int) -> PieceOrder:
        """The pieces that a position reads."""
        match self.assign:
            case "shuffle":
                key = derive_key(self.seed, epoch, "sequences of positions")
                return ShuffledPieces(Shuffles(len(self.library), key), self.batch_size, position)
            case "partition":
                return ListedPieces(self._groups[position])
            case "offset":
                return following_pieces(len(self.library), self.batch_size, position)

    @cached_property
    def _groups(self) -> list[Indices]:
        return partition(self.library.lengths, len(self.library), self.batch_size)

    @property
    def positions(self) -> range:
        """Of this rank."""
        return range(self.parts[0].start, self.parts[-1].stop)

    @cached_property
    def shares(self) -> Indices | None:
        """How many items each position has to read, over all ranks; None if that is not known."""
        lengths = self.library.lengths
        if lengths is None:
            return None
        if self.assign == "shuffle":
            return np.full(self.batch_size, lengths.sum())
        orders = [self.order(0, position) for position in range(self.batch_size)]
        return np.array([items_of(order, lengths, order.share) for order in orders], np.int64)

    @property
    def n_steps(self) -> int | None:
        """How many steps an epoch has; None if that is not known, or if it never ends."""
        return None if self.cycle or self.gives_items or self.shares is None else int(self.shares.max())


def cut_evenly(positions: range, parts: int) -> tuple[range, ...]:
    """Ranges that follow each other, as even as can be."""
    n = len(positions)
    borders = [n * i // parts for i in range(parts + 1)]
    return tuple(positions[start:end] for start, end in pairwise(borders))
