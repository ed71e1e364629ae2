"""The state of a loader: what is in it, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.base.errors import StateError
from headrace.base.state import VERSION, check_counts, check_equal
from headrace.multistream.assign import locate
from headrace.multistream.block import Hint
from headrace.multistream.plan import Plan


def described(plan: Plan) -> dict[str, Any]:
    """What a state must agree with."""
    lengths = plan.library.lengths
    return {
        "batch_size": plan.batch_size,
        "assign": plan.assign,
        "cycle": plan.cycle,
        "seed": plan.seed,
        "sequences": len(plan.library),
        "items": None if lengths is None else int(lengths.sum()),
    }


def first_state(plan: Plan, epoch: int) -> dict[str, Any]:
    """The state at the beginning of an epoch."""
    return {"headrace": VERSION, "epoch": epoch, "step": 0, "described": described(plan)}


def check_state(state: Any, plan: Plan) -> None:
    """See that a state is one, and of this plan.

    Raises:
        StateError: it is not.
    """
    if not isinstance(state, Mapping) or state.get("headrace") != VERSION or "described" not in state:
        raise StateError(
            f"This is no state of a MultiStreamDataLoader, of version {VERSION}: {state!r:.200}. Pass what "
            "state_dict() gave."
        )
    check_counts(state, "epoch", "step")
    check_equal(state["described"], described(plan))
    start_of(state, plan)


def start_of(state: Mapping[str, Any], plan: Plan) -> Hint:
    """Where the positions of this rank are.

    What the state does not tell, as it was taken on another rank, is computed, if all lengths are known.

    Raises:
        StateError: the state is damaged, or does not tell enough.
    """
    if state["step"] == 0:
        return Hint(0, np.zeros((len(plan.positions), 2), np.int64), {})
    try:
        places = np.array(state["places"], np.int64).reshape(-1, 2)
        told = range(state["first"], state["first"] + len(places))
        marks = {state["first"] + int(number): mark for number, mark in state["marks"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"The state is damaged: {error!r}. Pass what state_dict() gave.") from error
    if len(places) and places.min() < 0:
        raise StateError("The state is damaged: places must not be negative. Pass what state_dict() gave.")
    own = [
        places[told.index(position)] if position in told else _place_of(position, state, plan)
        for position in plan.positions
    ]
    first = plan.positions.start
    return Hint(
        state["step"],
        np.array(own, np.int64).reshape(-1, 2),
        {position - first: mark for position, mark in marks.items() if position in plan.positions},
    )


def _place_of(position: int, state: Mapping[str, Any], plan: Plan) -> tuple[int, int]:
    lengths = plan.library.lengths
    if lengths is None:
        raise StateError(
            f"The state does not tell where position {position} is: it was taken on another rank. Load the state of "
            "the same rank of as many ranks, or pass lengths= to both loaders."
        )
    return locate(plan.order(state["epoch"], position), lengths, state["step"])
