"""The epochs of a user's iterable dataset: every worker pulls from its own iteration over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.base.messages import Exhausted, Finished, IterableStart, Outcome, Place, PlacedKeys, Pull, Task
from headrace.base.own_states import check_owner
from headrace.base.plan import Plan
from headrace.base.schema import anything, count, flag, items, maybe, record, refuse, variants, whole
from headrace.base.state import check_equal
from headrace.order.schedule import Schedule
from headrace.order.worker_states import KEPT, WORKER_STATE, Told, check_told

_LANE = record({"batches": count, "state": maybe(WORKER_STATE), "has_ended": flag}, {"since": count})
_LANES = record({"described": anything, "workers": count, "last_lane": maybe(count), "lanes": items(_LANE)})


@dataclass
class LaneProgress:
    """How far one worker's iteration has come.

    Attributes:
        batches: given to the loop.
        state: what the dataset told of itself, if it knows its state, before the last `since` of them.
    """

    batches: int = 0
    state: Any = None
    has_ended: bool = False
    since: int = field(default=0, compare=False)

    def saved(self) -> dict[str, Any]:
        """For a position."""
        own = {"batches": self.batches, "state": self.state, "has_ended": self.has_ended}
        return own if self.state is None or not self.since else {**own, "since": self.since}


_COURSE = variants(
    {"lanes": _LANES, "workers": _LANES, "discard": record({"described": anything, "discard": count})},
    record({"described": anything}, KEPT),
)


class IterableOrder(Schedule):
    """Asks for batch after batch, until the iterations of all workers have ended.

    Args:
        batch_size: None for single samples.
        seed: None to leave the random numbers of the batches to chance.
        described: what a saved position must agree with.
        dataset: which may have told its state.
    """

    kind = "an iterable dataset"

    def __init__(
        self, batch_size: int | None, seed: int | None, described: Mapping[str, Any], dataset: Any = None
    ) -> None:
        self._dataset = dataset
        self._pull = Pull(batch_size)
        self._is_placed = seed is not None
        self._described = {**described, "seed": seed}

    def begin(self, epoch: int, start: Mapping[str, Any], *, batches: int = 0, workers: int = 0) -> IterablePlan:
        keys = PlacedKeys(self._pull, Place(epoch, 0, 0)) if self._is_placed else self._pull
        return IterablePlan(keys, self._described, epoch, start, batches=batches)

    def edge(self) -> dict[str, Any]:
        return {"described": dict(self._described)}

    def parse(self, course: Any) -> Any:
        return _COURSE(course, "course")

    def check(self, state: Mapping[str, Any], *, is_edge: bool) -> None:
        start, batches = state["course"], state["batches"]
        check_equal(start["described"], self._described)
        check_told(start, Told(self._dataset))
        if "lanes" not in start:
            if batches:
                refuse("course", "a mapping with lanes", start)
            return
        lanes = items(anything, max(1, start["workers"]))(start["lanes"], "course.lanes")
        whole(0, len(lanes) - 1)(start["last_lane"] or 0, "course.last_lane")
        whole(batches, batches)(sum(lane["batches"] for lane in lanes), "the sum of the batches of course.lanes")
        if any("dataset" in (lane["state"] or ()) for lane in lanes):
            check_owner(self._dataset)

    def seek(self, epoch: int, batch: int) -> dict[str, Any]:
        return {"described": dict(self._described), "discard": batch}

    def origins(self, epoch: int, start: Mapping[str, Any], ahead: int, plan: Plan | None, *, read: bool) -> Any:
        raise ValueError(
            "Where batches come from is not known of an iterable dataset of your own: only it knows what it yields. "
            "Make it a stream, by headrace.Stream.from_blocks or Stream.from_iterable, or let samples tell."
        )

    def n_batches(self, epoch: int) -> int:
        raise TypeError("An iterable dataset does not know its number of batches.")


class IterablePlan(Plan):
    """One epoch of a user's iterable dataset.

    Args:
        pull: what every task asks for.

    Attributes:
        lanes: how far the iterations of the workers have come.
        last_lane: which of them gave the last batch.
    """

    takes_turns = True
    passes_on = True

    def __init__(
        self,
        pull: Any,
        described: Mapping[str, Any] | None = None,
        epoch: int = 0,
        start: Mapping[str, Any] | None = None,
        *,
        batches: int = 0,
    ) -> None:
        super().__init__(epoch, start, batches=batches)
        self._pull = pull
        self._size = (pull.keys if type(pull) is PlacedKeys else pull).count
        self._count = self._size or 1
        self._described = dict(described or {})
        self._number = batches
        self.last_lane: int | None = self.start.get("last_lane")
        self.lanes = {
            number: LaneProgress(lane["batches"], lane["state"], lane["has_ended"], lane.get("since", 0))
            for number, lane in enumerate(self.start.get("lanes", ()))
        }
        self.after = self.last_lane
        self.ended = [number for number, lane in self.lanes.items() if lane.has_ended]
        self.replays = any(
            lane.batches and not _knows_place(lane.state) and not lane.has_ended for lane in self.lanes.values()
        )

    def starts(self) -> tuple[IterableStart, ...] | None:
        """Where the iterations of the workers go on; None for their beginning."""
        lanes, size = self.start.get("lanes"), self._size
        if lanes is None:
            states = self.start.get("states")
            if states is None:
                return None
            return tuple(IterableStart(self.epoch, 0, size, state, is_new=True) for state in states)
        return tuple(
            IterableStart(
                self.epoch,
                lane["batches"],
                size,
                lane["state"],
                lane["has_ended"],
                lane["batches"] if lane["state"] is None and not lane["has_ended"] else lane.get("since", 0),
            )
            for lane in lanes
        )

    def lasting(self) -> dict[str, Any]:
        states = [self.lanes.get(lane, LaneProgress()).state for lane in range(max(1, self.workers))]
        return {"workers": self.workers, "states": states} if any(states) else {}

    def next_task(self, worker: int) -> Task:
        self._number += 1
        return Task(self._number - 1, self._pull, worker)

    def number_of(self, task: Task) -> int:
        return self.batches  # workers that have nothing left are asked, too

    def give_one(self, task: Task, outcome: Outcome) -> int:
        lane = self.lanes.get(task.worker)
        if lane is None:
            lane = self.lanes[task.worker] = LaneProgress()
        state = outcome.state
        if state is not None:
            lane.state = state
            lane.since = 0 if _knows_place(state) else lane.batches
            lane.has_ended = state["has_ended"]  # it may tell the state of its beginning then
        if isinstance(outcome, Exhausted):
            lane.has_ended = True
            return 0
        self.latest = task.number
        lane.batches += 1
        lane.since += not (state is not None and _knows_place(state))
        self.last_lane = task.worker
        self.batches += 1
        if type(outcome) is not Finished:
            return 0
        return self._count - len(outcome.bad) if outcome.n_samples < 0 else outcome.n_samples

    def keys(self, mark: Any) -> Any:
        return ()

    def position(self) -> dict[str, Any]:
        saved: dict[str, Any] = {"described": dict(self._described)}
        if not self.batches:
            return saved
        lanes = [self.lanes.get(lane, LaneProgress()) for lane in range(max(1, self.workers))]
        return {
            **saved,
            "workers": self.workers,
            "last_lane": self.last_lane,
            "lanes": [lane.saved() for lane in lanes],
        }


def _knows_place(state: Any) -> bool:
    """Whether a dataset, or its iterator, told where it is; else it is run forward from the beginning."""
    return state is not None and ("dataset" in state or "iterator" in state)
