"""What workers do: they read the positions of a part, many steps at a time."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from headrace.batch.collate import Collator, FrameworkCollate
from headrace.frameworks.framework import Allocate
from headrace.multistream.block import Block, Hint, as_items, compose
from headrace.multistream.columns import python_numbers
from headrace.multistream.draws import KeyedDraws
from headrace.multistream.lane import Lane, Place, n_items
from headrace.multistream.plan import Plan
from headrace.multistream.tapes import Run


class BlockTask(NamedTuple):
    """Read the positions of a part, from a step on.

    Any worker can do it: it has just read the step before, or goes there from the hint.

    Attributes:
        chunks: how many to read, each of `seq_len` steps.
    """

    part: int
    epoch: int
    step: int
    chunks: int
    hint: Hint

    def __repr__(self) -> str:
        return f"(part {self.part}, epoch {self.epoch}, step {self.step})"


class Request(NamedTuple):
    """A block that is yet to be made, in the memory that the transport gives for it."""

    readers: BlockReaders
    task: BlockTask


class MakeBlock(FrameworkCollate):
    """Makes the block of a request, in NumPy arrays."""

    def collate_into(self, samples: Any, collator: Collator) -> Block:
        request: Request = samples
        return request.readers.make(request.task, collator.framework.allocate)


class BlockReaders:
    """The parts of a plan, as a dataset whose keys are tasks. Each worker has a copy, with lanes of its own.

    Args:
        is_threaded: whether the workers are threads, and `is_inline` whether there are none.
    """

    def __init__(self, plan: Plan, *, is_threaded: bool, is_inline: bool) -> None:
        self._plan = plan
        self._is_threaded = is_threaded
        self._is_inline = is_inline
        self._readers: dict[int, _PartReader] = {}
        self._draws: KeyedDraws | None = None

    def __getitem__(self, task: BlockTask) -> Request:
        return Request(self, task)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}, "_draws": None}

    def make(self, task: BlockTask, allocate: Allocate) -> Block:
        """The block of a task."""
        if self._draws is None and self._plan.library.runs_code:
            self._draws = KeyedDraws(self._plan.seed, shares_generators=self._is_threaded, gives_back=self._is_inline)
        reader = self._readers.pop(task.part, None)  # it comes back if all goes well
        if reader is None or (reader.epoch, reader.step) != (task.epoch, task.step):
            reader = _PartReader(self._plan, task, self._draws)
        block = reader.make(task.chunks, allocate)
        self._readers[task.part] = reader
        return block


class _PartReader:
    """The lanes of one part, side by side."""

    def __init__(self, plan: Plan, task: BlockTask, draws: KeyedDraws | None) -> None:
        self.epoch = task.epoch
        self.step = task.step
        self._plan = plan
        self._positions = plan.parts[task.part]
        self._draws = draws
        self._hint = task.hint
        self._lanes: list[Lane] = []

    def make(self, chunks: int, allocate: Allocate) -> Block:
        """The next block."""
        started = perf_counter()
        if self._draws is None:
            block = self._make(chunks, allocate)
        else:
            with self._draws.watch():
                block = self._make(chunks, allocate)
                while self._draws.has_missed():
                    self._hint, self._lanes = block.start, []
                    block = self._make(chunks, allocate)
        self.step += chunks * self._plan.layout.length
        return block._replace(seconds=perf_counter() - started)

    def _make(self, chunks: int, allocate: Allocate) -> Block:
        lanes = self._lanes = self._lanes or [self._open(number) for number in range(len(self._positions))]
        plan, layout = self._plan, self._plan.layout
        places = np.array([lane.place for lane in lanes], np.int64)
        marks = {number: mark for number, lane in enumerate(lanes) if (mark := lane.mark()) is not None}
        readings = [lane.read(chunks * layout.length) for lane in lanes]
        if plan.gives_items:
            fields = {"data": as_items(readings, chunks)}
        else:
            peeked = [lane.peek() for lane in lanes] if layout.targets else []
            fields = compose(readings, peeked, chunks, self._find_example, layout, allocate)
        pieces = [(n, start.at, start.ordinal) for n, reading in enumerate(readings) for start in reading.starts]
        return Block(
            fields,
            next((python_numbers(run) for reading in readings for run in reading.runs), []),
            [reading.count for reading in readings],
            Hint(self.step, places, marks),
            np.array(pieces, np.int64).reshape(-1, 3),
            chunks,
            0.0,
        )

    def _open(self, number: int) -> Lane:
        position = self._positions[number]
        lane = Lane(
            self._plan.library,
            self._plan.order(self.epoch, position),
            position=position,
            epoch=self.epoch,
            cycle=self._plan.cycle,
            draws=self._draws,
            step=self._hint.step,
            place=Place(*self._hint.places[number].tolist()),
            mark=self._hint.marks.get(number),
        )
        lane.skip(self.step - self._hint.step)
        return lane

    def _find_example(self) -> Run:
        """One item, to see what items are where no position has any left."""
        for number in range(len(self._plan.library)):
            tape = self._plan.library.open(number)
            tape.begin(None)
            run = tape.take(1, range(1))
            if n_items(run):
                return run
        raise ValueError("At least one of the sequences must have an item, but all are empty.")
