"""How far an epoch has come, what is asked of the workers next, and how much at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.frameworks.framework import Array
from headrace.multistream.block import Block, Hint
from headrace.multistream.plan import Plan
from headrace.multistream.reading import BlockTask

_BLOCK_BYTES = 2**21
_BLOCK_S = 0.05


class Pace:
    """How many chunks the next block has: few at first, then as many as are quickly made and not too large."""

    def __init__(self) -> None:
        self._chunks = 0
        self._most = 1

    def next_chunks(self) -> int:
        self._chunks = min(max(2 * self._chunks, 1), self._most)
        return self._chunks

    def learn(self, block: Block) -> None:
        """See what a block took."""
        by_size = _BLOCK_BYTES * block.chunks / max(block.n_bytes, 1)
        by_time = _BLOCK_S * block.chunks / max(block.seconds, 1e-9)
        # A worker that had to wait for its core once is no reason for small blocks.
        self._most = max(1, int(min(by_size, by_time)), block.chunks // 2)


class Course:
    """One epoch, from a step on.

    Attributes:
        step: how many items each position has given to the loop.
        is_over: whether the loop has seen the end.
    """

    def __init__(self, plan: Plan, epoch: int, start: Hint) -> None:
        self.epoch = epoch
        self.step = start.step
        self.is_over = False
        self._plan = plan
        first = plan.positions.start
        self._starts = [_part_of(start, part.start - first, part.stop - first) for part in plan.parts]
        self._pieces: list[Array] = [np.empty((0, 3), np.int64)] * len(plan.parts)
        self._pace = Pace()

    def tasks(self) -> Iterator[BlockTask]:
        """A task for each part in turn, block after block, up to the end of the epoch."""
        step, length, end = self.step, self._plan.layout.length, self._plan.n_steps
        while end is None or step < end:
            chunks = self._pace.next_chunks()
            if end is not None:
                chunks = min(chunks, -(-(end - step) // length))
            for part in range(len(self._plan.parts)):
                yield BlockTask(part, self.epoch, step, chunks, self._starts[part])
            step += chunks * length

    def enter(self, blocks: Sequence[Block]) -> None:
        """The loop comes to these blocks, one of each part."""
        self._starts = [block.start for block in blocks]
        self._pieces = [block.pieces for block in blocks]
        for block in blocks:
            self._pace.learn(block)

    def save(self) -> dict[str, Any]:
        """Where every position is, for JSON."""
        places: list[list[int]] = []
        marks: dict[str, Any] = {}
        for start, pieces in zip(self._starts, self._pieces, strict=True):
            hint = _moved(start, pieces, self.step - start.step)
            marks |= {str(len(places) + number): mark for number, mark in hint.marks.items()}
            places += hint.places.tolist()
        return {"step": self.step, "first": self._plan.positions.start, "places": places, "marks": marks}


def _part_of(whole: Hint, start: int, stop: int) -> Hint:
    marks = {number - start: mark for number, mark in whole.marks.items() if start <= number < stop}
    return Hint(whole.step, whole.places[start:stop], marks)


def _moved(start: Hint, pieces: Array, steps: int) -> Hint:
    """Where positions are some steps later, by what is known of the pieces that began there."""
    places, marks = start.places.copy(), dict(start.marks)
    places[:, 1] += steps
    for number, index, ordinal in pieces.tolist():
        if index <= steps:
            places[number] = ordinal, steps - index
            marks.pop(number, None)
    return Hint(start.step + steps, places, marks)
