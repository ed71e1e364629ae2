"""torch's DataPipes as datasets: what its own DataLoader does to a graph of them before each epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.base.optional import import_extra
from headrace.base.world import get_worker_info
from headrace.frameworks.torch_sampling import TorchRandom

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "A DataPipe")


def with_shuffle(datapipe: Any, shuffle: bool | None) -> Any:
    """The DataPipe with every shuffler in its graph switched on or off, if `shuffle` says so."""
    return torch.utils.data.graph_settings.apply_shuffle_settings(datapipe, shuffle=shuffle)


def begin_epoch(
    datapipe: Any, generator: torch.Generator | None, *, shard: bool, seed: int | None = None
) -> int | None:
    """Seed the random parts of the graph, alike on all ranks; the seed is returned, for the workers' copies.

    Args:
        shard: give this rank its share here; else the workers' `sharding_init` does.
        seed: already known when an epoch resumes.
    """
    if isinstance(datapipe, torch.utils.data.IterDataPipe):
        seed = _draw_shared_seed(generator) if seed is None else seed
        seed_graph(datapipe, seed)
    if shard:
        torch.utils.data.graph_settings.apply_sharding(datapipe, *_world())
    return seed


def _draw_shared_seed(generator: torch.Generator | None) -> int:
    drawn = torch.tensor(TorchRandom(generator).draw_seed())
    if _is_distributed():
        torch.distributed.broadcast(drawn, src=0, group=torch.distributed.new_group(backend="gloo"))
    return int(drawn.item())


def seed_graph(datapipe: Any, seed: int) -> None:
    """Seed the random parts of the graph."""
    torch.utils.data.graph_settings.apply_random_seed(datapipe, torch.Generator().manual_seed(seed))


def sharding_init(init_fn: Callable[[int], None] | None) -> Callable[[int], None]:
    """A `worker_init_fn` that also gives each worker of each rank its share."""
    return partial(_init_and_shard, init_fn, *_world())


def _init_and_shard(init_fn: Callable[[int], None] | None, world: int, rank: int, worker: int) -> None:
    if init_fn is not None:
        init_fn(worker)
    info = get_worker_info()
    if info is not None:
        settings = torch.utils.data.graph_settings
        settings.apply_sharding(info.dataset, info.num_workers * world, info.id * world + rank)


def _is_distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _world() -> tuple[int, int]:
    if not _is_distributed():
        return 1, 0
    return torch.distributed.get_world_size(), torch.distributed.get_rank()
