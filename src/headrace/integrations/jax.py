"""JAX: global arrays of what each host loads, placed on the devices one step ahead of the loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from headrace.integrations.wrapping import LoaderWrapper
from headrace.loader_base import Loader


def data_rank(sharding: Any) -> tuple[int, int]:
    """Which part of a global batch this host loads, and how many parts there are: for `shard=`.

    Hosts whose devices hold the same rows, as under tensor parallelism, get the same part.

    Args:
        sharding: of the batches, or a tree of them; rows are along the first axis.

    Raises:
        ValueError: some hosts share only some of their rows, or arrays of a batch are dealt out differently.
    """
    [*ranks] = {_rank_in(one) for one in jax.tree.leaves(sharding, is_leaf=_is_sharding)}
    if len(ranks) != 1:
        raise ValueError(f"All arrays of a batch must have their rows on the same hosts, got parts {sorted(ranks)}.")
    return ranks[0]


def place(loader: Loader, *, sharding: Any) -> PlacedLoader:
    """Make global arrays of the batches of a loader, each placed while the model works on the one before.

    Args:
        loader: gives every host its part: it has `shard=data_rank(sharding)`. `output="numpy"` saves a copy.
        sharding: of all arrays of a batch, or a tree with one for each.

    Raises:
        ValueError: the loader is for another host.
    """
    rank, expected = loader._epochs.schedule.rank, data_rank(sharding)
    if rank != expected:
        raise ValueError(
            f"The loader must give this host part {expected[0]} of {expected[1]}, but it gives part {rank[0]} of "
            f"{rank[1]}. Pass shard=headrace.integrations.jax.data_rank(sharding) to it."
        )
    return PlacedLoader(loader, sharding)


class PlacedLoader(LoaderWrapper):
    """A loader whose batches are global arrays of JAX. It reads ahead; its state is that of the batch at hand."""

    def __init__(self, loader: Loader, sharding: Any) -> None:
        super().__init__(loader)
        self.sharding = sharding

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch, _ in self._one_ahead(self._place))

    def _place(self, batch: Any) -> Any:
        if not isinstance(batch, (dict, list, tuple)):
            return self._place_rows(self.sharding, batch)
        return jax.tree.map(
            lambda sharding, part: jax.tree.map(lambda rows: self._place_rows(sharding, rows), part),
            self.sharding,
            batch,
            is_leaf=_is_sharding,
        )

    def _place_rows(self, sharding: Any, rows: Any) -> Any:
        local = np.asarray(rows)
        parts = len(_rows_of(sharding)[jax.process_index()])
        if not local.ndim or local.shape[0] % parts:
            raise ValueError(
                f"Rows of a batch must divide by the {parts} parts that this host's devices hold, got an array of "
                f"shape {local.shape}. Pass drop_last=True, or another batch_size."
            )
        return jax.make_array_from_process_local_data(sharding, local)


def _is_sharding(value: Any) -> bool:
    return isinstance(value, Sharding)


def _rows_of(sharding: Any) -> dict[int, set[tuple[int, int]]]:
    """The rows that each host's devices hold, of as many as there are devices."""
    devices = len(sharding.device_set)
    n_axes = max(1, len(getattr(sharding, "spec", ())))
    held: dict[int, set[tuple[int, int]]] = {}
    for device, index in sharding.devices_indices_map((devices,) * n_axes).items():
        first, last, _ = index[0].indices(devices)
        held.setdefault(device.process_index, set()).add((first, last))
    return held


def _rank_in(sharding: Any) -> tuple[int, int]:
    held = _rows_of(sharding)
    parts = sorted({tuple(sorted(rows)) for rows in held.values()})
    if len({rows for part in parts for rows in part}) != sum(map(len, parts)):
        raise ValueError("Any two hosts must hold the same rows of a batch, or none in common.")
    return parts.index(tuple(sorted(held[jax.process_index()]))), len(parts)
