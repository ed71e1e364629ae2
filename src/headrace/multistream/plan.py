"""The plan of an epoch of sequences side by side: blocks of steps are read by the workers, and cut into batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np

from headrace.base.errors import StateError, WorkerError, warn_user
from headrace.base.messages import BadSample, Failed, Finished, Outcome, Task, decoded
from headrace.base.plan import Batches, Due, Plan
from headrace.base.provenance import SampleOrigin
from headrace.base.schema import MOST, anything, count, each, items, record, refuse, table, variants, whole
from headrace.base.state import check_equal
from headrace.batch.collate import Collator
from headrace.frameworks.framework import Array, framework_of
from headrace.multistream.assign import locate
from headrace.multistream.block import Hint, StepBlock
from headrace.multistream.positions import PositionMap
from headrace.multistream.reading import BlockTask, LaneJob
from headrace.multistream.steps import cut_batches, join_parts
from headrace.order.samplers import EpochChoice
from headrace.order.schedule import Schedule
from headrace.order.seeded_order import is_running

_BLOCK_BYTES = 2**21
_BLOCK_S = 0.05
_MARK = record({"at": count}, {"window": count, "state": anything})
_ITEM_BITS = 34  # of a key; the others are the number of the piece


_COURSE = variants(
    {"discard": record({"described": anything, "discard": count})},
    record(
        {"described": anything, "step": count},
        {"first": count, "places": items(each(count, count)), "marks": table(_MARK)},
    ),
)


class LaneSchedule(Schedule):
    """The epochs of sequences that are read side by side."""

    kind = "sequences side by side"

    def __init__(self, positions: PositionMap, rank: tuple[int, int], front: EpochChoice | None = None) -> None:
        self.positions = positions
        self.rank = rank
        self.front = front

    def begin(self, epoch: int, start: Mapping[str, Any], *, batches: int = 0, workers: int = 0) -> LanePlan:
        plan = LanePlan(
            self.positions,
            epoch,
            start,
            self._start_of(epoch, start),
            batches=batches,
            described=self._described(),
        )
        if self.front is not None:
            self.front.follow(epoch, partial(is_running, weakref.ref(plan)))
        return plan

    def chosen_epoch(self) -> int | None:
        return None if self.front is None else self.front.take_choice()

    def reader(self, config: Any) -> LaneJob:
        return LaneJob(self.positions)

    def edge(self) -> dict[str, Any]:
        return {"described": self._described(), "step": 0}

    def _described(self) -> dict[str, Any]:
        """What a state must agree with."""
        positions, lengths = self.positions, self.positions.library.lengths
        return {
            "batch_size": positions.batch_size,
            "assign": positions.assign,
            "cycle": positions.cycle,
            "seed": positions.seed,
            "sequences": len(positions.library),
            "items": None if lengths is None else int(lengths.sum()),
        }

    def upgrade(self, state: Any) -> Any:
        """States had all in one place once, and no number of batches."""
        if not isinstance(state, Mapping) or "course" in state or "described" not in state:
            return state
        count(state.get("epoch"), "epoch")
        count(state.get("step"), "step")
        course = {name: state[name] for name in ("described", "step", "first", "places", "marks") if name in state}
        n_batches = -(-state["step"] // self.positions.layout.length)
        header = {"headrace": state.get("headrace"), "epoch": state["epoch"], "errors": 0, "base_seed": None}
        return {**header, "batches": n_batches, "course": course}

    def parse(self, course: Any) -> Any:
        return _COURSE(course, "course")

    def check(self, state: Mapping[str, Any], *, is_edge: bool) -> None:
        start, batches = state["course"], state["batches"]
        check_equal(start["described"], self._described())
        if "discard" in start:
            return
        # Each batch takes a step or more.
        whole(batches, MOST if batches else 0)(start["step"], "course.step")
        if not batches:
            return
        missing = [name for name in ("first", "places", "marks") if name not in start]
        if missing:
            refuse("course", f"a mapping with {', '.join(missing)}", start)
        self._check_places(start, state["epoch"])
        self._start_of(state["epoch"], start)

    def _check_places(self, start: Mapping[str, Any], epoch: int) -> None:
        """See that there are such items, as far as that is known without reading."""
        places, lengths = start["places"], self.positions.library.lengths
        whole(0, self.positions.batch_size)(start["first"] + len(places), "the last position of course.places")
        for number, (ordinal, offset) in enumerate(places):
            path = f"course.places[{number}]"
            order = self.positions.order(epoch, start["first"] + number)
            if not self.positions.cycle:
                whole(0, order.share)(ordinal, f"{path}[0]")
            whole(0, start["step"])(offset, f"{path}[1]")
            if lengths is not None and self.positions.cycle:  # else offsets count on where a position has ended
                length = int(lengths[order.at(np.array([ordinal]))[0]])
                whole(0, length)(offset, f"{path}[1]")
        numbers = {str(number): offset for number, (_, offset) in enumerate(places)}
        for number, mark in start["marks"].items():
            if number not in numbers:
                refuse(f"course.marks[{number!r}]", "of one of course.places", mark)
            whole(0, numbers[number])(mark["at"], f"course.marks[{number!r}].at")

    def gather(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """One state, of those of all ranks, or of any of them.

        Where lengths are unknown, and it does not have the positions of this rank, these are read again up to there.

        Raises:
            StateError: the states are not of one moment, or positions are missing.
        """
        state = states[0] if len(states) == 1 else _joined(states)
        course, own = state["course"], self.positions.positions
        known = range(course.get("first", 0), course.get("first", 0) + len(course.get("places", ())))
        knows_all = self.positions.library.lengths is not None or set(own) <= set(known)
        if not state["batches"] or "places" not in course or knows_all:
            return state
        check_equal(course["described"], self._described())
        warn_user(
            f"The state has positions {known.start} to {known.stop - 1}, and this rank has {own.start} to "
            f"{own.stop - 1}, which are read again up to there, since the lengths of the sequences are not known. Pass "
            "the states of all ranks, as a list, or lengths= to the loader."
        )
        return {**state, "batches": 0, "course": {"described": course["described"], "discard": state["batches"]}}

    def seek(self, epoch: int, batch: int) -> dict[str, Any]:
        step = batch * self.positions.layout.length
        if self.positions.library.lengths is None:
            return {"described": self._described(), "discard": batch}
        places = [list(self._locate(epoch, position, step)) for position in self.positions.positions]
        return {
            "described": self._described(),
            "step": step,
            "first": self.positions.positions.start,
            "places": places,
            "marks": {},
        }

    def origins(self, epoch: int, start: Mapping[str, Any], ahead: int, plan: Any, *, read: bool) -> Any:
        positions, lengths = self.positions, self.positions.library.lengths
        if lengths is None:
            raise ValueError(
                "Where batches come from is known only if the lengths of all sequences are. Pass lengths=."
            )
        first = start.get("step", 0) + ahead * positions.layout.length
        if positions.n_steps is not None and first >= positions.n_steps:
            raise IndexError("The epoch has no such batch: it ends before.")
        assert positions.shares is not None
        found = []
        for position in positions.positions:
            order = positions.order(epoch, position)
            end = first + positions.layout.length
            end = end if positions.cycle else min(end, int(positions.shares[position]))
            found += [self._origin_of(*item) for item in _items_from(order, lengths, first, end)]
        return found

    def _origin_of(self, piece: int, item: int) -> SampleOrigin:
        first = self.positions.library.first_item(piece)
        return SampleOrigin(piece, row=item) if first is None else SampleOrigin(0, row=first + item)

    def n_batches(self, epoch: int) -> int:
        steps = self.positions.n_steps
        if steps is None:
            raise TypeError(
                "The number of batches is known only with cycle=False, and if the lengths of all sequences are known: "
                "pass lengths=."
            )
        return -(-steps // self.positions.layout.length)

    def expected(self, plan: Plan) -> ExpectedItems | None:
        if self.positions.n_steps is None:
            return None
        return ExpectedItems(self.positions, plan.epoch, begins=not plan.began_at)

    def _start_of(self, epoch: int, start: Mapping[str, Any]) -> Hint:
        """Where the positions of this rank are.

        What the state does not tell, as it was taken on another rank, is computed, if all lengths are known.

        Raises:
            StateError: the state does not tell enough.
        """
        own = self.positions.positions
        if not start.get("step"):
            return Hint(0, np.zeros((len(own), 2), np.int64), {})
        places = np.array(start["places"], np.int64).reshape(-1, 2)
        known = range(start["first"], start["first"] + len(places))
        marks = {start["first"] + int(number): mark for number, mark in start["marks"].items()}
        rows = [
            places[known.index(position)] if position in known else self._locate(epoch, position, start["step"])
            for position in own
        ]
        return Hint(
            start["step"],
            np.array(rows, np.int64).reshape(-1, 2),
            {position - own.start: mark for position, mark in marks.items() if position in own},
        )

    def _locate(self, epoch: int, position: int, step: int) -> tuple[int, int]:
        lengths = self.positions.library.lengths
        if lengths is None:
            raise StateError(
                f"The state does not tell where position {position} is: it was taken on another rank. Load the state "
                "of the same rank of as many ranks, or pass lengths= to both loaders."
            )
        return locate(self.positions.order(epoch, position), lengths, step)


def _joined(states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The state of all positions, of those of all ranks.

    Raises:
        StateError: they are not of one moment, or positions are missing.
    """
    courses = sorted((state["course"] for state in states), key=lambda course: course.get("first", 0))
    if len({(state["epoch"], state["batches"]) for state in states}) > 1:
        raise StateError(
            "The states must be of one moment, got those of [epoch, batches] "
            f"{[[state['epoch'], state['batches']] for state in states]}."
        )
    if not states[0]["batches"] or "places" not in courses[0]:
        return states[0]
    places: list[Any] = []
    marks: dict[str, Any] = {}
    for course in courses:
        if course["first"] != courses[0]["first"] + len(places):
            raise StateError(
                f"There must be one state of each rank: that of position {courses[0]['first'] + len(places)} is "
                f"missing, or there twice; the next one begins with {course['first']}."
            )
        marks |= {str(len(places) + int(number)): mark for number, mark in course["marks"].items()}
        places += course["places"]
    return {**states[0], "course": {**courses[0], "places": places, "marks": marks}}


def _items_from(order: Any, lengths: Any, first: int, end: int) -> Iterator[tuple[int, int]]:
    """The items of a position at some steps: the piece, and the number in it."""
    if first >= end:
        return
    ordinal, offset = locate(order, lengths, first)
    for _ in range(first, end):
        piece = int(order.at(np.array([ordinal]))[0])
        while offset >= lengths[piece]:
            ordinal, offset = ordinal + 1, 0
            piece = int(order.at(np.array([ordinal]))[0])
        yield piece, offset
        offset += 1


class BlockSize:
    """How many chunks the next block has: few at first, then as many as are quickly made and not too large."""

    def __init__(self) -> None:
        self._chunks = 0
        self._most = 1

    def next_chunks(self) -> int:
        self._chunks = min(max(2 * self._chunks, 1), self._most)
        return self._chunks

    def learn(self, block: StepBlock) -> None:
        """See what a block took."""
        by_size = _BLOCK_BYTES * block.chunks / max(block.n_bytes, 1)
        by_time = _BLOCK_S * block.chunks / max(block.seconds, 1e-9)
        # A worker that had to wait for its core once is no reason for small blocks.
        self._most = max(1, int(min(by_size, by_time)), block.chunks // 2)


class LanePlan(Plan):
    """One epoch, from a step on.

    Args:
        hint: where the positions are at that step.
        described: what the position of another plan must agree with.

    Attributes:
        step: how many items each position has given to the loop.
    """

    survives_errors = False
    makes_batches = True

    def __init__(
        self,
        positions: PositionMap,
        epoch: int,
        start: Mapping[str, Any] | None,
        hint: Hint,
        *,
        batches: int = 0,
        described: Mapping[str, Any],
    ) -> None:
        super().__init__(epoch, start, batches=batches)
        self.step = hint.step
        self._positions = positions
        self._length = positions.layout.length
        self._described = described
        first = positions.positions.start
        self._starts = [_part_of(hint, part.start - first, part.stop - first) for part in positions.parts]
        self._pieces: list[Array] = [np.empty((0, 3), np.int64)] * len(positions.parts)
        self._size = BlockSize()
        self._number = 0
        self._next = (0, self.step, 0)  # the part, step and chunks of the next task
        self._blocks: list[StepBlock] = []  # of the parts of the steps that come next
        self._bad: tuple[BadSample, ...] = ()
        self._n_samples = len(positions.positions)
        self._collator: Collator | None = None
        self._collate_fn: Callable[[Any], Any] | None = None

    def prepare(self, reader: Any, workplace: Any) -> None:
        job = workplace.job
        self._collator = collator = Collator(framework_of(job.output))
        if job.collate_fn is None:
            return

        def collate(items: list[Any]) -> Any:
            batch = job.collate_fn(items)
            return collator.convert(batch, tuples_to_lists=False) if job.convert else batch

        self._collate_fn = lambda items: workplace.timed(partial(collate, items))

    def next_task(self, worker: int) -> Task | None:
        """A task for each part in turn, block after block, up to the end of the epoch."""
        part, step, chunks = self._next
        end = self._positions.n_steps
        if self.is_complete or (end is not None and step >= end):
            return None
        if not part:
            chunks = self._size.next_chunks()
            if end is not None:
                chunks = min(chunks, -(-(end - step) // self._length))
        is_last = part + 1 == len(self._positions.parts)
        self._next = (0, step + chunks * self._length, 0) if is_last else (part + 1, step, chunks)
        self._number += 1
        task = BlockTask(part, self.epoch, step, chunks, self._starts[part])
        return Task(self._number - 1, task, part % max(1, self.workers))

    def accept(self, task: Task, outcome: Outcome) -> Iterable[Due]:
        outcome = decoded(outcome)
        if isinstance(outcome, Failed):
            return ((task, outcome),)
        self._bad += outcome.bad
        if not isinstance(outcome, Finished):  # nothing can be left out of all positions at once
            cause = outcome.bad[-1].error if outcome.bad else "it has ended"
            return ((task, Failed(task.number, WorkerError(f"Positions could not be read: {cause}"))),)
        self._blocks.append(outcome.batch)
        if len(self._blocks) < len(self._positions.parts):
            return ()
        blocks, self._blocks = self._blocks, []
        end = self._find_end(blocks)
        self.is_complete = end < blocks[0].chunks
        for block in blocks:
            self._size.learn(block)
        bad, self._bad = self._bad, ()
        n_tasks = len(blocks)
        return [Batches(partial(self._open, blocks, end), zip(repeat(blocks), range(end)), bad, n_tasks=n_tasks)]

    def _find_end(self, blocks: Sequence[StepBlock]) -> int:
        """How many batches there are in blocks: all, or as many as have items."""
        if self._positions.n_steps is not None:
            return blocks[0].chunks
        counts = [count for block in blocks for count in block.counts]
        return -(-(min if self._positions.gives_items else max)(counts) // self._length)

    def _open(self, blocks: list[StepBlock], end: int) -> Iterable[Any]:
        self._starts = [block.start for block in blocks]
        self._pieces = [block.pieces for block in blocks]
        assert self._collator is not None
        return cut_batches(join_parts(blocks, self._positions), end, self._positions, self._collator, self._collate_fn)

    def give(self, marks: Iterator[Any], n: int) -> int:
        self.batches += n
        self.latest = self.batches - 1
        self.step += n * self._length
        given = list(islice(marks, n))
        if self._positions.cycle:
            return n * self._n_samples
        return sum(count > chunk * self._length for blocks, chunk in given for b in blocks for count in b.counts)

    def locate(self, bad: tuple[BadSample, ...]) -> tuple[BadSample, ...]:
        return tuple(replace(one, batch=self.batches) for one in bad)

    def keys(self, mark: Any) -> Any:
        if type(mark) is Task:
            return None
        blocks, chunk = mark
        found = []
        for part, block in zip(self._positions.parts, blocks, strict=True):
            for number, position in enumerate(part):
                order = self._positions.order(self.epoch, position)
                for step in range(chunk * self._length, min((chunk + 1) * self._length, block.counts[number])):
                    ordinal, offset = _moved(block.start, block.pieces, step).places[number].tolist()
                    piece = int(order.at(np.array([ordinal]))[0])
                    found.append((piece << _ITEM_BITS) + offset)
        return np.array(found, np.int64)

    def position(self) -> dict[str, Any]:
        places: list[list[int]] = []
        marks: dict[str, Any] = {}
        for start, pieces in zip(self._starts, self._pieces, strict=True):
            hint = _moved(start, pieces, self.step - start.step)
            marks |= {str(len(places) + number): mark for number, mark in hint.marks.items()}
            places += hint.places.tolist()
        return {
            "described": dict(self._described),
            "step": self.step,
            "first": self._positions.positions.start,
            "places": places,
            "marks": marks,
        }

    def describe(self, task: Task) -> tuple[Any, ...]:
        block, part = task.keys, self._positions.parts[task.keys.part]
        last = block.step + block.chunks * self._length - 1
        what = f"positions {part.start} to {part.stop - 1}, steps {block.step} to {last}"
        return what, block.chunks * len(part)

    def abandon(self) -> None:
        self.is_complete = True


class ExpectedItems:
    """What all ranks together are to get in an epoch that ends, as an audit wants to know it."""

    is_guess = False

    def __init__(self, positions: PositionMap, epoch: int, *, begins: bool) -> None:
        self._positions = positions
        self._epoch = epoch
        self._begins = begins

    def whole(self) -> Iterator[Any]:
        """All items of the shares of all positions."""
        lengths = self._positions.library.lengths
        assert lengths is not None
        for position in range(self._positions.batch_size):
            order = self._positions.order(self._epoch, position)
            for piece in order.at(np.arange(order.share)).tolist():
                yield (piece << _ITEM_BITS) + np.arange(lengths[piece], dtype=np.int64)

    def rest(self) -> Iterator[Any] | None:
        return self.whole() if self._begins else None

    def n_dropped(self) -> int:
        return 0

    def n_doubled(self) -> int:
        return 0


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
