"""What workers do: they read the positions of a part, many steps at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from headrace.frameworks.framework import Allocate
from headrace.multistream.block import Hint, StepBlock, as_items, compose
from headrace.multistream.columns import python_numbers
from headrace.multistream.draws import KeyedDraws
from headrace.multistream.lane import Lane, LanePlace, OnBad, n_items
from headrace.multistream.positions import PositionMap
from headrace.multistream.sequence_reader import Run


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

    def where(self) -> str:
        """What is read, for people."""
        return f"steps {self.step} and after of epoch {self.epoch}, part {self.part} of the positions"


@dataclass(frozen=True)
class LaneJob:
    """What workers read the positions of a batch with."""

    positions: PositionMap

    def open(self, workplace: Any) -> LaneFetcher:
        """What answers the tasks of a `LanePlan`, in a worker."""
        return LaneFetcher(self.positions, workplace)


class LaneFetcher:
    """Makes blocks: many steps of the positions of a part. Each worker has lanes of its own.

    Args:
        workplace: where it works; see `headrace.engines.worker.Workplace`.
    """

    def __init__(self, positions: PositionMap, workplace: Any) -> None:
        self._positions = positions
        self._workplace = workplace
        self._readers: dict[int, _PartReader] = {}
        self._draws: KeyedDraws | None = None
        if positions.library.runs_code:
            is_thread = workplace.kind == "thread"
            self._draws = KeyedDraws(positions.seed, shares_generators=is_thread, gives_back=workplace.number is None)

    def fetch(self, task: BlockTask) -> StepBlock:
        """The block of a task."""
        reader = self._readers.pop(task.part, None)  # it comes back if all goes well
        if reader is None or (reader.epoch, reader.step) != (task.epoch, task.step):
            reader = _PartReader(self._positions, task, self._draws, self._workplace.on_bad)
        block = reader.make(task.chunks, self._workplace.allocate, self._workplace.lap)
        self._readers[task.part] = reader
        return block


class _PartReader:
    """The lanes of one part, side by side."""

    def __init__(self, positions: PositionMap, task: BlockTask, draws: KeyedDraws | None, on_bad: OnBad | None) -> None:
        self.epoch = task.epoch
        self.step = task.step
        self._map = positions
        self._positions = positions.parts[task.part]
        self._draws = draws
        self._on_bad = on_bad
        self._hint = task.hint
        self._lanes: list[Lane] = []

    def make(self, chunks: int, allocate: Allocate, lap: Callable[[str], None]) -> StepBlock:
        """The next block."""
        started = perf_counter()
        if self._draws is None:
            block = self._make(chunks, allocate, lap)
        else:
            with self._draws.watch():
                block = self._make(chunks, allocate, lap)
                while self._draws.has_missed():
                    self._hint, self._lanes = block.start, []
                    block = self._make(chunks, allocate, lap)
        self.step += chunks * self._map.layout.length
        return block._replace(seconds=perf_counter() - started)

    def _make(self, chunks: int, allocate: Allocate, lap: Callable[[str], None]) -> StepBlock:
        lanes = self._lanes = self._lanes or [self._open(number) for number in range(len(self._positions))]
        layout = self._map.layout
        places = np.array([lane.place for lane in lanes], np.int64)
        marks = {number: mark for number, lane in enumerate(lanes) if (mark := lane.mark()) is not None}
        readings = [lane.read(chunks * layout.length) for lane in lanes]
        lap("read")
        if self._map.gives_items:
            fields = {"data": as_items(readings, chunks)}
        else:
            peeked = [lane.peek() for lane in lanes] if layout.targets else []
            fields = compose(readings, peeked, chunks, self._find_example, layout, allocate)
        lap("collate")
        pieces = [(n, start.at, start.ordinal) for n, reading in enumerate(readings) for start in reading.starts]
        return StepBlock(
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
            self._map.library,
            self._map.order(self.epoch, position),
            position=position,
            epoch=self.epoch,
            cycle=self._map.cycle,
            draws=self._draws,
            step=self._hint.step,
            place=LanePlace(*self._hint.places[number].tolist()),
            mark=self._hint.marks.get(number),
            on_bad=self._on_bad,
        )
        lane.skip(self.step - self._hint.step)
        return lane

    def _find_example(self) -> Run:
        """One item, to see what items are where no position has any left."""
        for number in range(len(self._map.library)):
            reader = self._map.library.open(number)
            reader.begin(None)
            run = reader.take(1, range(1))
            if n_items(run):
                return run
        raise ValueError("At least one of the sequences must have an item, but all are empty.")
