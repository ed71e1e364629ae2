"""The windows of an epoch: which blocks are read together, in which order, by which rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.base.keys import derive_key
from headrace.order.permutation import Permutation
from headrace.sources.source import Block


@dataclass(frozen=True)
class Shuffle:
    """How a stream is mixed.

    Attributes:
        blocks: how many blocks, far from each other in the data, have their rows shuffled together.
        seed: used if the loader has none.
    """

    blocks: int
    seed: int = 0


@dataclass(frozen=True)
class Window:
    """Some blocks that are read together by one worker.

    Attributes:
        number: its place in the epoch, over all ranks.
        key: that its rows are shuffled by, and its random numbers drawn by.
        is_shuffled: whether its rows are shuffled.
    """

    number: int
    blocks: tuple[Block, ...]
    key: int
    is_shuffled: bool


class WindowPlan:
    """The windows of one epoch, as a function of their number.

    Guarantees: every block is in exactly one window of each round; pure, so that all workers and ranks find the same.

    Args:
        rounds: how often the data is gone through.
    """

    def __init__(
        self, blocks: Sequence[Block], shuffle: Shuffle | None, seed: int, epoch: int, rounds: int = 1
    ) -> None:
        self._blocks = blocks
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = epoch
        self._per_window = 1 if shuffle is None else shuffle.blocks
        self._per_round = -(-len(blocks) // self._per_window)
        self._rounds = rounds

    def rounds(self) -> list[range]:
        """The numbers of the windows of each round."""
        return [range(i * self._per_round, (i + 1) * self._per_round) for i in range(self._rounds)]

    def __len__(self) -> int:
        return self._per_round * self._rounds

    def window(self, number: int) -> Window:
        """Window `number`, which lies in [0, len)."""
        turn, place = divmod(number, self._per_round)
        first = place * self._per_window
        places = np.arange(first, min(first + self._per_window, len(self._blocks)))
        if self._shuffle is not None:
            key = derive_key(self._seed, self._epoch, f"blocks, round {turn}")
            places = Permutation(len(self._blocks), key).at(places)
        return Window(
            number,
            tuple(self._blocks[i] for i in places.tolist()),
            derive_key(self._seed, self._epoch, f"window {number}"),
            self._shuffle is not None,
        )
