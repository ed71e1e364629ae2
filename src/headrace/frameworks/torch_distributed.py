"""The process group of `torch.distributed`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.optional import import_extra

if TYPE_CHECKING:
    import torch.distributed as distributed
else:
    distributed = import_extra("torch.distributed", "torch", "Asking for this process's rank")


def world_and_rank() -> tuple[int, int]:
    """The number of ranks and this process's own, in the default process group.

    Raises:
        RuntimeError: this build of torch has no distributed package.
        ValueError: the process group was not initialised.
    """
    if not distributed.is_available():
        raise RuntimeError("num_replicas and rank must be given: this torch has no distributed package.")
    return distributed.get_world_size(), distributed.get_rank()
