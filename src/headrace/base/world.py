"""Where this code runs: in which worker, if any, and in which process's memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from functools import cache
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
        rng: None, as in torch's worker processes; `headrace.rng()` is the generator of the sample at work.
        worker_method: "multiprocessing" or "thread".
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: Any = None
    worker_method: str | None = "multiprocessing"


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
    if theirs is None:
        return None
    # Before torch 2.13, `rng` and `worker_method` are missing.
    return WorkerInfo(
        **{field.name: getattr(theirs, field.name) for field in fields(WorkerInfo) if hasattr(theirs, field.name)}
    )


def enter_worker_thread(info: WorkerInfo) -> None:
    """From now on this thread is a worker."""
    _here.worker = replace(info, worker_method="thread")


def own_worker() -> WorkerInfo | None:
    """The worker that this thread is, if it is one by itself; to be adopted by threads that it starts."""
    return _here.worker


def adopt_worker(info: WorkerInfo | None) -> None:
    """From now on this thread works for another one, which is this worker."""
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


_MAPPED_BYTES = 31 << 20  # what glibc learns from: blocks of up to 32 MB


@cache  # a process that is forked has learnt it, too
def keep_freed_memory() -> None:
    """Let freed memory be used again, instead of being given back to the system.

    glibc gives back whatever is free at the end of its heap, from 128 KB on, and the system clears every page that it
    hands out again; rows of a few kilobytes then take several times as long to make as to copy. Both limits grow once a
    large block has been freed: so one is, which nobody has touched. Other C libraries take no notice.
    """
    bytes(_MAPPED_BYTES)
