"""What workers tell of their datasets and generators after their batches, and how a state brings it back to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.own_states import check_owner
from headrace.base.schema import anything, count, flag, items, maybe, record, whole
from headrace.base.state import parse_worker_generators

WORKER_STATE = record(
    {}, {"dataset": anything, "iterator": anything, "generators": parse_worker_generators, "has_ended": flag}
)

_STATES = {"workers": count, "states": items(maybe(WORKER_STATE))}

KEPT = {"kept": record(_STATES)}
"""The field of a position at the end of an epoch: what workers that stay know."""

TOLD = {**_STATES, "last_worker": maybe(count), "discard": count}
"""The fields of a position in the middle of an epoch of a dataset by key."""


@dataclass(frozen=True)
class Told:
    """What workers tell of themselves.

    Attributes:
        dataset: which may know its state.
        snapshot_every: after how many batches they do; 0 if they do not.
    """

    dataset: Any = None
    snapshot_every: int = 0


class ToldStates:
    """The states that the workers of an epoch told, each after its last batch that was given.

    Args:
        start: the position that the epoch began with.

    Attributes:
        last_worker: which gave the last batch; None if nobody has.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._states: dict[int, Any] = dict(enumerate(start.get("states", ())))
        self.last_worker: int | None = start.get("last_worker")

    def __bool__(self) -> bool:
        return bool(self._states)

    def note(self, worker: int, state: Any) -> None:
        """A worker's batch is given; it may not tell its state."""
        self.last_worker = worker
        if state is not None:
            self._states[worker] = state

    def listed(self, workers: int) -> dict[str, Any]:
        """All of them, for a position."""
        return {"workers": workers, "states": [self._states.get(number) for number in range(max(1, workers))]}


def check_told(start: Mapping[str, Any], told: Told) -> None:
    """See that the states in a position can be given back to the workers.

    Raises:
        StateError: they cannot.
    """
    saved = start.get("kept", start)
    if "states" not in saved:
        return
    states: Sequence[Any] = items(anything, max(1, saved.get("workers", 0)))(saved["states"], "course.states")
    if saved.get("last_worker") is not None:
        whole(0, len(states) - 1)(saved["last_worker"], "course.last_worker")
    if any("dataset" in (state or ()) for state in states):
        check_owner(told.dataset)
