"""Which positions of an order belong to which rank."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headrace.base.optional import loaded

Even: TypeAlias = Literal["drop", "pad", "repeat", "allow", "agree"]
EVEN = ("drop", "pad", "repeat", "allow", "agree")

# What launchers tell their processes: torchrun and others, Slurm, Open MPI.
_ENVIRONMENT = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


# How frameworks call the dimensions of a mesh whose peers are to get different data.
_DATA_PARALLEL = ("dp", "dp_replicate", "dp_shard", "fsdp", "replicate", "shard", "data", "batch", "ddp", "hsdp")


@dataclass(frozen=True)
class Shard:
    """One rank's part of an order: every `world`-th position, beginning with `rank`.

    So after the same number of batches on every rank, what was given is the beginning of the order, without a gap; and
    the rest can be dealt to another number of ranks.

    Attributes:
        even: what is done if the positions do not divide by the ranks. "drop" leaves out the last few; "pad" takes the
            first few again, so that all ranks have the same number of samples; "repeat" goes round again until the
            batches of all ranks are full; "allow" leaves ranks with one sample more than others. "agree" deals out as
            "allow" does; then it is up to the epochs that ranks end together.
    """

    rank: int = 0
    world: int = 1
    even: Even = "drop"

    def size(self, n: int, batch_size: int = 1) -> int:
        """How many of n positions this rank has."""
        match self.even:
            case "drop":
                return n // self.world
            case "allow" | "agree":
                return max(0, -(-(n - self.rank) // self.world))
            case "pad":
                return -(-n // self.world)
            case "repeat":
                return -(-n // (self.world * batch_size)) * batch_size


def resolve_shard(shard: Any, even: Any) -> Shard | None:
    """The shard that a loader was asked for, as far as ranks are known by now; None for all positions, as in torch.

    Args:
        shard: None; "auto" for what `torch.distributed` or the environment tells; (rank, world); or a `DeviceMesh`,
            or (mesh, names of its data-parallel dimensions).

    Raises:
        ValueError: it is none of these, or the rank does not lie in [0, world).
    """
    if even not in EVEN:
        raise ValueError(f"even must be one of {', '.join(map(repr, EVEN))}, got {even!r}.")
    if shard is None:
        return None
    if isinstance(shard, str) and shard == "auto":
        rank, world = find_rank()
    elif _is_mesh(shard):
        rank, world = _rank_in_mesh(shard, None)
    elif isinstance(shard, tuple) and len(shard) == 2 and _is_mesh(shard[0]):
        rank, world = _rank_in_mesh(*shard)
    else:
        rank, world = _checked(shard)
    if not 0 <= rank < world:
        raise ValueError(f"shard must be (rank, world) with 0 <= rank < world, got ({rank}, {world}).")
    return Shard(rank, world, "allow" if even == "agree" else even)


def _checked(shard: Any) -> tuple[int, int]:
    try:
        rank, world = shard
        return int(rank.__index__()), int(world.__index__())
    except (TypeError, ValueError, AttributeError):
        raise ValueError(
            f"shard must be None, 'auto', (rank, world), a DeviceMesh or (mesh, dimension), got {shard!r}."
        ) from None


def _is_mesh(shard: Any) -> bool:
    """Whether it is a `DeviceMesh`; torch need not be imported to see that it is none."""
    return hasattr(shard, "mesh_dim_names") and callable(getattr(shard, "get_local_rank", None))


def _rank_in_mesh(mesh: Any, names: str | tuple[str, ...] | None) -> tuple[int, int]:
    """The rank along the data-parallel dimensions, the first one outermost, and how many ranks they have.

    Peers along any other dimension get the same rank, and so the same batches.
    """
    known = tuple(mesh.mesh_dim_names or ())
    if isinstance(names, str):
        names = (names,)
    elif names is None:
        names = known if len(known) == 1 else tuple(name for name in known if name in _DATA_PARALLEL)
    if mesh.ndim == 1 and not known:
        return int(mesh.get_local_rank()), int(mesh.size())
    if not names or not set(names) <= set(known):
        raise ValueError(
            f"shard must name the data-parallel dimension of the mesh, one of {known}, got {names!r}. Pass "
            "shard=(mesh, 'name')."
        )
    if mesh.get_coordinate() is None:
        raise ValueError("shard must be a mesh that this rank belongs to: its peers have no data for it.")
    rank, world = 0, 1
    for name in names:
        size = int(mesh.size(known.index(name)))
        rank, world = rank * size + int(mesh.get_local_rank(name)), world * size
    return rank, world


def find_rank() -> tuple[int, int]:
    """This process's rank, and how many there are, as far as is known by now; (0, 1) if nobody tells."""
    distributed = loaded("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, world in _ENVIRONMENT:
        if rank in os.environ and world in os.environ:
            return int(os.environ[rank]), int(os.environ[world])
    return 0, 1
