"""The state of a user's iterable, if it knows one: torchdata's methods, of the dataset, of its iterator, or of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.base.messages import IterableStart
from headrace.base.own_states import knows_state, load_state, state_of


def begin_stream(dataset: Iterable[Any], start: IterableStart | None = None) -> Iterator[Any]:
    """An iterator over the dataset, set to the state that it told; `__iter__` is called once.

    A dataset that is its own iterator, which `__iter__` may reset, gets its state afterwards, too, unless it is that of
    the end of the epoch before.
    """
    state = {} if start is None or start.state is None else start.state
    if "dataset" in state:
        load_state(dataset, state["dataset"])
    samples = iter(dataset)
    if start is not None and start.is_new:
        return samples
    if "dataset" in state and samples is dataset:
        load_state(dataset, state["dataset"])
    if "iterator" in state:
        load_state(samples, state["iterator"])
    return samples


def stream_state(dataset: Any, samples: Any) -> dict[str, Any] | None:
    """What both tell of themselves now; None if neither knows a state."""
    state = {}
    if knows_state(dataset):
        state["dataset"] = state_of(dataset)
    if samples is not dataset and knows_state(samples):
        state["iterator"] = state_of(samples)
    return state or None
