"""The epochs of a user's iterable dataset: every worker pulls from its own iteration over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import StateError
from headrace.base.messages import Exhausted, Finished, IterableStart, Outcome, Place, PlacedKeys, Pull, Task
from headrace.base.plan import Plan
from headrace.base.state import check_counts, check_equal
from headrace.order.schedule import Schedule


@dataclass
class LaneProgress:
    """How far one worker's iteration has come.

    Attributes:
        batches: given to the loop.
        state: what the dataset told of itself after the last of them, if it knows its state.
    """

    batches: int = 0
    state: Any = None
    has_ended: bool = False


class IterableOrder(Schedule):
    """Asks for batch after batch, until the iterations of all workers have ended.

    Args:
        batch_size: None for single samples.
        seed: None to leave the random numbers of the batches to chance.
        described: what a saved position must agree with.
    """

    def __init__(self, batch_size: int | None, seed: int | None, described: Mapping[str, Any]) -> None:
        self._pull = Pull(batch_size)
        self._is_placed = seed is not None
        self._described = {**described, "seed": seed}

    def begin(self, epoch: int, start: Mapping[str, Any], *, batches: int = 0, workers: int = 0) -> IterablePlan:
        keys = PlacedKeys(self._pull, Place(epoch, 0, 0)) if self._is_placed else self._pull
        return IterablePlan(keys, self._described, epoch, start, batches=batches)

    def edge(self) -> dict[str, Any]:
        return {"described": dict(self._described)}

    def check(self, start: Mapping[str, Any], *, is_edge: bool) -> None:
        check_equal(start["described"], self._described)
        if not is_edge and "discard" not in start:
            check_counts(start, "workers")
            for lane in start["lanes"]:
                check_counts(lane, "batches")
            if len(start["lanes"]) != max(1, start["workers"]):
                raise StateError("The state is damaged: there must be a lane for each worker.")

    def seek(self, epoch: int, batch: int) -> dict[str, Any]:
        return {"described": dict(self._described), "discard": batch}

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
        self._count = (pull.keys if type(pull) is PlacedKeys else pull).count or 1
        self._described = dict(described or {})
        self._number = batches
        self.last_lane: int | None = self.start.get("last_lane")
        self.lanes = {
            number: LaneProgress(lane["batches"], lane["state"], lane["has_ended"])
            for number, lane in enumerate(self.start.get("lanes", ()))
        }
        self.after = self.last_lane
        self.ended = [number for number, lane in self.lanes.items() if lane.has_ended]
        self.replays = any(lane.batches and lane.state is None and not lane.has_ended for lane in self.lanes.values())

    def starts(self) -> tuple[IterableStart, ...] | None:
        """Where the iterations of the workers go on; None for their beginning."""
        lanes = self.start.get("lanes")
        if lanes is None:
            return None
        return tuple(
            IterableStart(self.epoch, lane["batches"], self._count, lane["state"], lane["has_ended"]) for lane in lanes
        )

    def next_task(self, worker: int) -> Task:
        self._number += 1
        return Task(self._number - 1, self._pull, worker)

    def give_one(self, task: Task, outcome: Outcome) -> int:
        lane = self.lanes.get(task.worker)
        if lane is None:
            lane = self.lanes[task.worker] = LaneProgress()
        if isinstance(outcome, Exhausted):
            lane.has_ended = True
            return 0
        self.latest = task.number
        lane.batches += 1
        state = outcome.state
        if state is not None:
            lane.state = state
            lane.has_ended = state["has_ended"]  # it may tell the state of its beginning then
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
            "lanes": [{"batches": lane.batches, "state": lane.state, "has_ended": lane.has_ended} for lane in lanes],
        }
