"""Who is running: the worker that executes this code, if any."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from headrace.base.after_import import after_import
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


class _Here(threading.local):
    worker: WorkerInfo | None = None


_here = _Here()
_process_worker: WorkerInfo | None = None  # seen from every thread that a worker process starts


def get_worker_info() -> WorkerInfo | None:
    """The worker that executes the caller, or None in the main process.

    Also answers inside a worker of torch's own DataLoader, so that a dataset needs to ask in one place only.
    """
    info = _here.worker or _process_worker
    if info is not None:
        return info
    torch_data = loaded("torch.utils.data")
    theirs = None if torch_data is None else torch_data.get_worker_info()
    return None if theirs is None else WorkerInfo(theirs.id, theirs.num_workers, theirs.seed, theirs.dataset)


def enter_worker_thread(info: WorkerInfo) -> None:
    """From now on this thread is a worker."""
    _here.worker = info


def enter_worker_process(info: WorkerInfo) -> None:
    """From now on this process is a worker, for torch's `get_worker_info` too, whenever torch is imported."""
    global _process_worker
    _process_worker = info

    def tell_torch(module: Any) -> None:
        module._worker_info = module.WorkerInfo(
            id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset
        )

    after_import("torch.utils.data._utils.worker", tell_torch)
