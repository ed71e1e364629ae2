"""The states that users' samplers tell of themselves, with torchdata's methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.base.own_states import check_owner, knows_state, load_state, state_of
from headrace.base.schema import refuse
from headrace.order.batch_order_sampler import BatchOrderSampler


def parts_of(index_sampler: Any) -> list[Any]:
    """A sampler or batch sampler, and the sampler that it cuts, if any."""
    return [part for part in (index_sampler, getattr(index_sampler, "sampler", None)) if part is not None]


def states_of(parts: Iterable[Any]) -> list[Any]:
    """What the samplers tell of themselves; None for those that know no state."""
    return [state_of(part) if _knows_state(part) else None for part in parts]


def check_states(parts: Sequence[Any], states: Sequence[Any]) -> None:
    """See that there are samplers to give the states back to; no states at all will do.

    Raises:
        StateError: there are not.
    """
    if states and len(states) != len(parts):
        refuse("samplers", f"a list of {len(parts)}", states)
    for part, state in zip(parts, states, strict=False):
        if state is not None:
            check_owner(part)


def load_states(parts: Iterable[Any], states: Iterable[Any]) -> None:
    """Give the samplers back what they told."""
    for part, state in zip(parts, states, strict=False):
        if state is not None:
            load_state(part, state)


def _knows_state(part: Any) -> bool:
    if isinstance(part, BatchOrderSampler):
        return False  # its epoch and the number of batches tell more: after the last one, the epoch is not over yet
    return knows_state(part)
