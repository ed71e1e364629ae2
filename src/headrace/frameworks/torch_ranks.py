"""What the ranks of `torch.distributed` tell each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from headrace.base.errors import RankError

_own: tuple[Any, Any] | None = None  # the default group, and the one that is used for this beside it


class TorchAgreement:
    """An agreement of all ranks of the default process group, over a gloo group of its own.

    So it is of no account what the default group's backend is, and what else goes over it meanwhile. The first one that
    is made must be made by all ranks.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._rank, self._world = distributed.get_rank(), distributed.get_world_size()
        self._group = _gloo_group()
        self._told: list[tuple[Any, torch.Tensor]] = []  # that others may not have heard yet

    def settle(self, status: int) -> tuple[int, int]:
        """The lowest status that any rank tells, and which rank it is.

        Raises:
            RankError: one of them is gone.
        """
        work, told = self._start(status)
        try:
            work.wait()
        except RuntimeError as error:
            self.is_open = False
            raise RankError(
                f"Rank {self._rank} waited for the others to agree on the next batch, and one of them is gone or late: "
                f"{str(error).strip():.200}"
            ) from error
        self._told.clear()  # those came before
        lowest, rank = divmod(int(told), self._world)
        return lowest, rank

    def tell(self, status: int) -> None:
        """The same, without waiting for the others."""
        self._told.append(self._start(status))

    def _start(self, status: int) -> tuple[Any, torch.Tensor]:
        told = torch.tensor(status * self._world + self._rank)
        return distributed.all_reduce(told, distributed.ReduceOp.MIN, self._group, async_op=True), told


def _gloo_group() -> Any:
    global _own
    default = distributed.group.WORLD
    if _own is None or _own[0] is not default:
        _own = default, distributed.new_group(backend="gloo")
    return _own[1]
