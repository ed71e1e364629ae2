"""The states that users' samplers tell of themselves, with torchdata's methods."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from headrace.order.batch_order_sampler import BatchOrderSampler


def parts_of(index_sampler: Any) -> list[Any]:
    """A sampler or batch sampler, and the sampler that it cuts, if any."""
    return [part for part in (index_sampler, getattr(index_sampler, "sampler", None)) if part is not None]


def states_of(parts: Iterable[Any]) -> list[Any]:
    """What the samplers tell of themselves; None for those that know no state."""
    return [deepcopy(part.state_dict()) if _knows_state(part) else None for part in parts]


def load_states(parts: Iterable[Any], states: Iterable[Any]) -> None:
    """Give the samplers back what they told."""
    for part, state in zip(parts, states, strict=False):
        if state is not None:
            part.load_state_dict(deepcopy(state))


def _knows_state(part: Any) -> bool:
    if isinstance(part, BatchOrderSampler):
        return False  # its epoch and the number of batches tell more: after the last one, the epoch is not over yet
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))
