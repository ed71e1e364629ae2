"""torchtitan: a loader as its `BaseDataLoader`, for finite data, with workers, and on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchtitan.components.dataloader import BaseDataLoader

from headrace.integrations.checkpoints import OneEntryState
from headrace.integrations.wrapping import coming_epoch
from headrace.loader_base import Loader


class TitanLoader(BaseDataLoader):  # type: ignore[misc]
    """What a function for `build_dataloader_fn` returns.

    Batches must be what the model takes: a dict of inputs, and labels. The state is one entry, the same on all ranks:
    a checkpoint resumes on another number of data-parallel ranks, at exactly the next sample.

    Args:
        loader: gives each data-parallel rank its part: it has `shard=(dp_rank, dp_world_size)`, or the mesh.
        dp_rank: of this process, as torchtitan gives it.
        dp_world_size: the number of data-parallel ranks.
        epochs: how often the data is gone through before torchtitan ends the training; None for as long as it trains.

    Raises:
        ValueError: the loader is for another rank.
    """

    def __init__(self, loader: Loader, dp_rank: int, dp_world_size: int, *, epochs: int | None = None) -> None:
        rank = loader._epochs.schedule.rank
        if rank != (dp_rank, dp_world_size):
            raise ValueError(
                f"The loader must give data-parallel rank {dp_rank} of {dp_world_size} its part, but it is for rank "
                f"{rank[0]} of {rank[1]}. Pass shard=({dp_rank}, {dp_world_size}) to it."
            )
        self.loader = loader
        self.dp_rank, self.dp_world_size = dp_rank, dp_world_size
        self._epochs = epochs
        self._state = OneEntryState(loader)

    def __iter__(self) -> Iterator[Any]:
        while self._epochs is None or coming_epoch(self.loader) < self._epochs:
            yield from self.loader

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch at hand, as one entry."""
        return self._state.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the loader resume there."""
        self._state.load_state_dict(state_dict)

    def close(self) -> None:
        """End all workers."""
        self.loader.close()
