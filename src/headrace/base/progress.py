"""How far an epoch has come, from the view of the loop that gets its batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LaneProgress:
    """How far one worker's stream has come.

    Attributes:
        batches: given to the loop.
        state: what the stream told of itself after the last of them, if it knows its state.
    """

    batches: int = 0
    state: Any = None
    has_ended: bool = False


@dataclass
class Progress:
    """Counts what has been given to the loop.

    Attributes:
        first: the number of the first batch that is to be given.
        batches: all batches before this number were given.
        ahead: the numbers after it that were given, too; only out of order are there any.
        lanes: of the workers' streams.
        last_lane: which of them gave the last batch.
        is_over: whether the loop has seen the end of the epoch.
        start: the state that the epoch was begun with; empty at its beginning.
        keys: what gives the keys of the batches, and may know more of how far it is.
        samplers: the states that samplers told at the beginning of the epoch.
        place: the window and the row of a stream that come next; window -1 after the last.
        follows_lanes: whether each worker has a stream of its own, to be followed.
        workers: how many there are, and `base_seed` what their generators are seeded from.
        shared_seed: of a DataPipe.
    """

    epoch: int
    first: int = 0
    batches: int = 0
    ahead: set[int] = field(default_factory=set)
    lanes: dict[int, LaneProgress] = field(default_factory=dict)
    last_lane: int | None = None
    is_over: bool = False
    start: Mapping[str, Any] = field(default_factory=dict)
    keys: Any = None
    samplers: list[Any] = field(default_factory=list)
    place: tuple[int, int] | None = None
    follows_lanes: bool = False
    workers: int = 0
    base_seed: int = 0
    shared_seed: int | None = None

    def give(self, number: int) -> None:
        """Batch `number` is given to the loop, or its error is raised there."""
        if number != self.batches:
            self.ahead.add(number)
            return
        self.batches += 1
        while self.batches in self.ahead:
            self.ahead.remove(self.batches)
            self.batches += 1

    def give_from(self, lane: int, state: Any) -> None:
        """A lane's next batch is given to the loop."""
        progress = self._lane(lane)
        progress.batches += 1
        if state is not None:
            progress.state = state
            progress.has_ended = state["has_ended"]  # it may tell the state of its beginning then
        self.last_lane = lane
        self.batches += 1

    def end_lane(self, lane: int) -> None:
        """A lane has nothing more to give."""
        self._lane(lane).has_ended = True

    def _lane(self, number: int) -> LaneProgress:
        if number not in self.lanes:
            self.lanes[number] = LaneProgress()
        return self.lanes[number]
