"""The epochs of a user's own stream: every worker pulls from its own iteration over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

from headrace.base.errors import StateError
from headrace.base.messages import Place, PlacedKeys, Pull, StreamStart
from headrace.base.progress import LaneProgress, Progress
from headrace.base.state import check_counts, check_equal


class StreamCourse:
    """Asks for batch after batch, until the streams have ended.

    Args:
        batch_size: None for single samples.
        seed: None to leave the random numbers of the batches to chance.
        described: what a saved place must agree with.
    """

    def __init__(self, batch_size: int | None, seed: int | None, described: Mapping[str, Any]) -> None:
        self._pull = Pull(batch_size)
        self._size = batch_size or 1
        self._is_placed = seed is not None
        self._described = {**described, "seed": seed}

    def begin(self, progress: Progress) -> Iterator[Any]:
        return repeat(PlacedKeys(self._pull, Place(progress.epoch, 0, 0)) if self._is_placed else self._pull)

    def restore(self, start: Mapping[str, Any]) -> None:
        """Nothing lasts longer than an epoch."""

    def starts(self, epoch: int, start: Mapping[str, Any]) -> tuple[StreamStart, ...] | None:
        """Where the streams of the workers go on; None for their beginning."""
        lanes = start.get("lanes")
        if lanes is None:
            return None
        return tuple(
            StreamStart(epoch, lane["batches"], self._size, lane["state"], lane["has_ended"]) for lane in lanes
        )

    def save(self, progress: Progress) -> dict[str, Any]:
        saved: dict[str, Any] = {"described": dict(self._described)}
        if progress.is_over or not progress.batches:
            return saved
        lanes = [progress.lanes.get(lane, LaneProgress()) for lane in range(max(1, progress.workers))]
        return {
            **saved,
            "workers": progress.workers,
            "last_lane": progress.last_lane,
            "lanes": [{"batches": lane.batches, "state": lane.state, "has_ended": lane.has_ended} for lane in lanes],
        }

    def check(self, start: Mapping[str, Any], *, is_edge: bool) -> None:
        check_equal(start["described"], self._described)
        if not is_edge and "discard" not in start:
            check_counts(start, "workers")
            for lane in start["lanes"]:
                check_counts(lane, "batches")
            if len(start["lanes"]) != max(1, start["workers"]):
                raise StateError("The state is damaged: there must be a lane for each worker.")

    def seek(self, batch: int) -> dict[str, Any]:
        return {"described": dict(self._described), "discard": batch}

    def n_batches(self, epoch: int) -> int:
        raise TypeError("A stream of your own knows no number of batches.")
