"""Which position of the batch reads which sequences: what all workers of a loader agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from headrace.arguments import checked_seed
from headrace.base.generators import derive_key
from headrace.base.indices import Indices
from headrace.multistream.assign import (
    ASSIGNS,
    Assign,
    ListedPieces,
    PieceOrder,
    ShuffledPieces,
    Shuffles,
    following_pieces,
    items_of,
    partition,
)
from headrace.multistream.sequence_set import SegmentSet, Sequences, SequenceSet, WindowSet
from headrace.order.shard import Shard, resolve_shard
from headrace.streams.stream import Stream


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
class PositionMap:
    """Which position reads what.

    Attributes:
        batch_size: positions over all ranks.
        parts: the positions of this rank, cut for its workers.
        cycle: whether positions go on after their share.
        gives_items: whether batches are lists of what the sequences give, which end with the first that ends: the form
            of datasets that give parts of batches.
    """

    library: Sequences
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


def map_positions(
    sequences: Any,
    batch_size: int | None,
    assign: Assign,
    *,
    read: Callable[[Any], Any] | None,
    lengths: Iterable[int] | int | None,
    layout: Layout,
    seed: int,
    cycle: bool,
    shard: Any,
    num_workers: int,
) -> PositionMap:
    """See `MultiStreamDataLoader`.

    Raises:
        ValueError, TypeError: an argument is wrong.
    """
    seed = checked_seed(seed, None, None) or 0
    if assign not in ASSIGNS:
        raise ValueError(f"assign must be one of {', '.join(map(repr, ASSIGNS))}, got {assign!r}.")
    if layout.seq_len is not None:
        _check_positive("seq_len", layout.seq_len)
    elif layout.batch_first:
        raise ValueError("batch_first=True needs seq_len: without it, a batch has no dimension of steps.")
    if batch_size is None:
        is_plain = layout.is_plain and layout.seq_len is None and read is None and lengths is None and shard is None
        if not is_plain:
            raise ValueError("Without batch_size, the datasets alone decide what a batch is: pass batch_size.")
        return _map_datasets(sequences, layout, seed, num_workers)
    _check_positive("batch_size", batch_size)
    library = _make_library(sequences, batch_size, assign, read, lengths)
    own = _positions_of(batch_size, shard)
    parts = cut_evenly(own, max(1, min(num_workers, len(own))))
    positions = PositionMap(library, layout, assign, batch_size, parts, seed, cycle)
    _check_food(positions)
    return positions


def _make_library(
    sequences: Any,
    batch_size: int,
    assign: Assign,
    read: Callable[[Any], Any] | None,
    lengths: Iterable[int] | int | None,
) -> Sequences:
    if assign != "offset":
        if isinstance(lengths, int):
            raise TypeError(f"lengths must have the number of items of each sequence, got {lengths}.")
        return SequenceSet(sequences, read, lengths)
    if lengths is not None and not isinstance(lengths, int):
        raise TypeError(f"With assign='offset', lengths must be that of the one sequence, an int, got {lengths!r:.80}.")
    if isinstance(sequences, Stream) and read is None:
        return WindowSet(sequences)
    return SegmentSet(sequences, batch_size, read, lengths)


def _map_datasets(datasets: Any, layout: Layout, seed: int, num_workers: int) -> PositionMap:
    """Each dataset is a position whose items are parts of batches; all end with the first that ends."""
    library = SequenceSet(datasets)
    first = datasets[0]
    if isinstance(first, (Sequence, np.ndarray)) and not isinstance(first, str) and len(first):
        check_part(first[0])  # what lies in memory can be looked at before anything is read
    n = len(library)
    parts = cut_evenly(range(n), max(1, min(num_workers, n)))
    return PositionMap(library, layout, "offset", n, parts, seed, cycle=False, gives_items=True)


def count_datasets(datasets: Any) -> int:
    """How many datasets there are that give parts of batches.

    Raises:
        TypeError: this is no list of them; mostly `batch_size` was forgotten.
    """
    if not hasattr(datasets, "__len__"):
        raise TypeError(
            f"Without batch_size, sequences must be a list of datasets that give parts of batches, got "
            f"{type(datasets).__name__}. Pass batch_size: how many sequences are read side by side."
        )
    return len(datasets)


def _positions_of(batch_size: int, shard: Any) -> range:
    """Those of this rank."""
    own = resolve_shard(shard, "drop") or Shard()
    if own.world > batch_size:
        raise ValueError(
            f"batch_size counts the positions of all ranks, so it must be at least {own.world}, got {batch_size}."
        )
    return cut_evenly(range(batch_size), own.world)[own.rank]


def _check_food(positions: PositionMap) -> None:
    """See that every position has something to read."""
    if positions.shares is not None and not positions.shares.any():
        raise ValueError("At least one of the sequences must have an item, but all are empty.")
    if positions.assign != "partition":
        return
    hungry = positions.batch_size - len(positions.library)
    if positions.cycle and positions.shares is not None:
        hungry = int((positions.shares == 0).sum())
    if hungry > 0:
        raise ValueError(
            f"assign='partition' leaves {hungry} of {positions.batch_size} positions without an item, as there are "
            f"only {len(positions.library)} sequences. Pass a smaller batch_size, or assign='shuffle'."
        )


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")


def shown(sequences: Any, positions: PositionMap, num_workers: int, engine: Any) -> str:
    """A loader in one line."""
    kind = type(sequences).__name__
    is_one = positions.assign == "offset" and not positions.gives_items
    parts = [f"<{kind}>" if is_one else f"<{kind} of {len(positions.library)}>"]
    if not positions.gives_items:
        parts.append(f"batch_size={positions.batch_size}")
        if positions.layout.seq_len is not None:
            parts.append(f"seq_len={positions.layout.seq_len}")
        parts += [f"assign={positions.assign!r}", f"cycle={positions.cycle}"]
    parts += [f"seed={positions.seed}", f"num_workers={num_workers}"]
    if num_workers:
        parts.append(f"engine={engine!r}")
    if len(positions.positions) < positions.batch_size:
        parts.append(f"positions {positions.positions.start} to {positions.positions.stop - 1}")
    return f"MultiStreamDataLoader({', '.join(parts)})"


def check_part(part: Any) -> None:
    """See that what a dataset gives is its part of a batch.

    Raises:
        TypeError: it is a sample; mostly `batch_size` was forgotten.
    """
    if not isinstance(part, Iterable) or isinstance(part, (str, bytes)):
        raise TypeError(
            f"Without batch_size, each dataset gives its part of every batch, a list of items, got {part!r:.80}. Pass "
            "batch_size, which is how many sequences are read side by side; or give lists."
        )
