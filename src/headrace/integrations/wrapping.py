"""A loader in another shape: what every adapter adds its trainer's contract to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.loader_base import Loader

_END = object()


class LoaderWrapper:
    """Passes on everything to a loader, and saves the state of the batch at hand, even if a later one was read.

    Attributes:
        loader: the one that loads.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._state: dict[str, Any] | None = None  # None: that of the loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def _one_ahead(self, prepare: Callable[[Any], Any]) -> Iterator[tuple[Any, bool]]:
        """The batches, each with whether it is the last; the next one is prepared before the loop gets this one."""
        self._state = None
        batches = iter(self.loader)
        batch = next(batches, _END)
        batch = batch if batch is _END else prepare(batch)
        while batch is not _END:
            self._state = self.loader.state_dict()
            following = next(batches, _END)
            following = following if following is _END else prepare(following)
            yield batch, following is _END
            batch = following
        self._state = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch."""
        self._state = None
        self.loader.set_epoch(epoch)

    def seek(self, batch: int) -> None:
        """Begin the next epoch with this batch."""
        self._state = None
        self.loader.seek(batch)

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch at hand. That of one process fits all of them."""
        return self.loader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next epoch resume there."""
        self._state = None
        self.loader.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


def coming_epoch(loader: Any) -> int:
    """The epoch of the next batch: of a state that was taken at the last batch of an epoch, the one after it."""
    state = loader.state_dict()
    try:
        is_over = state["batches"] >= len(loader) > 0
    except TypeError:  # its length is not known
        is_over = False
    return int(state["epoch"]) + bool(is_over)
