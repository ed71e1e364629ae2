"""torch's DataPipes as datasets: what its own DataLoader does to a graph of them before each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.base.optional import import_extra
from headrace.frameworks.torch_random import TorchRandom

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "A DataPipe")


def with_shuffle(datapipe: Any, shuffle: bool | None) -> Any:
    """The DataPipe with every shuffler in its graph switched on or off, if `shuffle` says so."""
    return torch.utils.data.graph_settings.apply_shuffle_settings(datapipe, shuffle=shuffle)


def begin_epoch(datapipe: Any, generator: torch.Generator | None) -> None:
    """Seed the random parts of the graph, alike on all ranks, and give this rank its share."""
    settings = torch.utils.data.graph_settings
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if isinstance(datapipe, torch.utils.data.IterDataPipe):
        seed = torch.tensor(TorchRandom(generator).draw_seed())
        if distributed:
            torch.distributed.broadcast(seed, src=0, group=torch.distributed.new_group(backend="gloo"))
        settings.apply_random_seed(datapipe, torch.Generator().manual_seed(int(seed.item())))
    world = (torch.distributed.get_world_size(), torch.distributed.get_rank()) if distributed else (1, 0)
    settings.apply_sharding(datapipe, *world)
