"""Who is running: the worker that executes this code, if any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.base.optional import loaded


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker knows about itself.

    Attributes:
        id: this worker's number, from 0 to `num_workers - 1`.
        num_workers: how many workers there are.
        seed: the seed that this worker's random generators started from.
        dataset: this worker's copy of the dataset.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """The worker that executes the caller, or None in the main process.

    Also answers inside a worker of torch's own DataLoader, so that a dataset needs to ask in one place only.
    """
    torch_data = loaded("torch.utils.data")
    if torch_data is None:
        return None
    info = torch_data.get_worker_info()
    return None if info is None else WorkerInfo(info.id, info.num_workers, info.seed, info.dataset)
