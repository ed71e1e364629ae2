"""The states that users' samplers, datasets and iterators tell of themselves, with torchdata's methods."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Protocol, runtime_checkable

from headrace.base.errors import StateError


@runtime_checkable
class Stateful(Protocol):
    """A dataset, iterator or sampler that knows its state, which loaders then save and restore with their own.

    The same protocol as `torchdata.stateful_dataloader.Stateful`.
    """

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go there."""


def knows_state(owner: Any) -> bool:
    """Whether it has the methods."""
    return callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None))


def state_of(owner: Any) -> Any:
    """What it tells of itself now; it may change that afterwards."""
    return deepcopy(owner.state_dict())


def load_state(owner: Any, state: Any) -> None:
    """Give it back what it told.

    Raises:
        StateError: it takes none, or not this one; the cause is what it raised.
    """
    check_owner(owner)
    try:
        owner.load_state_dict(deepcopy(state))
    except Exception as error:
        raise StateError(
            f"{type(owner).__name__} could not load the state that the loader's state has of it: {error!r:.200}"
        ) from error


def check_owner(owner: Any) -> None:
    """See that there is somebody to give a state back to.

    Raises:
        StateError: it was another class that told it.
    """
    if not knows_state(owner):
        raise StateError(
            f"The state was taken of a class with `state_dict` and `load_state_dict`; {type(owner).__name__} has none. "
            "Load it with the class that it was saved with."
        )
