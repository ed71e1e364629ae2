"""The state of a user's iterable, if it knows one: torchdata's methods, of the dataset, of its iterator, or of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from headrace.base.messages import IterableStart


def begin_stream(dataset: Iterable[Any], start: IterableStart | None = None) -> Iterator[Any]:
    """An iterator over the dataset, set to the state that it told; `__iter__` is called once.

    A dataset that is its own iterator, which `__iter__` may reset, gets its state afterwards; others before.
    """
    state = {} if start is None or start.state is None else start.state
    if "dataset" in state:
        _load(dataset, state["dataset"])
    samples = iter(dataset)
    if "dataset" in state and samples is dataset:
        _load(dataset, state["dataset"])
    if "iterator" in state:
        _load(samples, state["iterator"])
    return samples


def stream_state(dataset: Any, samples: Any) -> dict[str, Any] | None:
    """What both tell of themselves now; None if neither knows a state."""
    state = {}
    if knows_state(dataset):
        state["dataset"] = deepcopy(dataset.state_dict())
    if samples is not dataset and knows_state(samples):
        state["iterator"] = deepcopy(samples.state_dict())
    return state or None


def knows_state(stream: Any) -> bool:
    """Whether it has torchdata's methods."""
    return callable(getattr(stream, "state_dict", None)) and callable(getattr(stream, "load_state_dict", None))


def _load(stream: Any, state: Any) -> None:
    if not knows_state(stream):
        raise TypeError(
            f"The state was taken of a dataset or iterator with `load_state_dict`; {type(stream).__name__} has none. "
            "Load it with the class that it was saved with."
        )
    stream.load_state_dict(deepcopy(state))
