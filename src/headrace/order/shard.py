"""Which positions of an order belong to which rank."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headrace.base.optional import loaded

Even: TypeAlias = Literal["drop", "pad", "repeat", "allow"]
EVEN = ("drop", "pad", "repeat", "allow")

# What launchers tell their processes: torchrun and others, Slurm, Open MPI.
_ENVIRONMENT = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


@dataclass(frozen=True)
class Shard:
    """One rank's part of an order: every `world`-th position, beginning with `rank`.

    So after the same number of batches on every rank, what was given is the beginning of the order, without a gap; and
    the rest can be dealt to another number of ranks.

    Attributes:
        even: what is done if the positions do not divide by the ranks. "drop" leaves out the last few; "pad" takes the
            first few again, so that all ranks have the same number of samples; "repeat" goes round again until the
            batches of all ranks are full; "allow" leaves ranks with one sample more than others.
    """

    rank: int = 0
    world: int = 1
    even: Even = "drop"

    def size(self, n: int, batch_size: int = 1) -> int:
        """How many of n positions this rank has."""
        match self.even:
            case "drop":
                return n // self.world
            case "allow":
                return max(0, -(-(n - self.rank) // self.world))
            case "pad":
                return -(-n // self.world)
            case "repeat":
                return -(-n // (self.world * batch_size)) * batch_size


def resolve_shard(shard: Any, even: Any) -> Shard | None:
    """The shard that a loader was asked for; None for all positions, as in torch.

    Args:
        shard: None, "auto" for what `torch.distributed` or the environment tells, or (rank, world).

    Raises:
        ValueError: it is none of these, or the rank does not lie in [0, world).
    """
    if even not in EVEN:
        raise ValueError(f"even must be one of {', '.join(map(repr, EVEN))}, got {even!r}.")
    if shard is None:
        return None
    rank, world = _find_rank() if shard == "auto" else _checked(shard)
    if not 0 <= rank < world:
        raise ValueError(f"shard must be (rank, world) with 0 <= rank < world, got ({rank}, {world}).")
    return Shard(rank, world, even)


def _checked(shard: Any) -> tuple[int, int]:
    try:
        rank, world = shard
        return int(rank.__index__()), int(world.__index__())
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f"shard must be None, 'auto' or (rank, world), got {shard!r}.") from None


def _find_rank() -> tuple[int, int]:
    distributed = loaded("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, world in _ENVIRONMENT:
        if rank in os.environ and world in os.environ:
            return int(os.environ[rank]), int(os.environ[world])
    return 0, 1
