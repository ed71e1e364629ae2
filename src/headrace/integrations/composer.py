"""Composer: a callback that keeps the place of the training loader in checkpoints, so that nothing is replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer import Callback, State

from headrace.integrations.wrapping import LoaderWrapper, coming_epoch
from headrace.loader_base import Loader


class LoaderCheckpoint(Callback):  # type: ignore[misc]
    """Puts the state of the training loader into Composer's checkpoints, and resumes at exactly the next batch.

    Composer itself saves states of datasets only, and reads again what was trained on. Pass the loader as
    `train_dataloader`, and this as one of the `callbacks`. With several ranks, the loader needs `shard="auto"`, or must
    read a stream.

    Args:
        loader: the training loader.
    """

    def __init__(self, loader: Loader | LoaderWrapper) -> None:
        self._loader = loader
        self._state: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch at hand."""
        return {"loader": self._loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume there, as soon as training begins."""
        self._state = state["loader"]

    def fit_start(self, state: State, logger: Any) -> None:
        """Load the state, and say that nothing has to be replayed.

        Raises:
            StateError: the state does not fit the loader.
        """
        if self._state is None:
            return
        self._loader.load_state_dict(self._state)
        epoch, batches = int(state.timestamp.epoch), int(state.timestamp.batch_in_epoch)
        if batches and coming_epoch(self._loader) > epoch:
            # Saved at the last batch: Composer goes through the rest of that epoch, which is empty.
            self._loader.set_epoch(epoch)
            self._loader.seek(batches)
        state.dataset_resumption["train"] = True
        self._state = None
