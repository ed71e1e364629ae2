"""Ray Train: a loader in a training function, without `prepare_data_loader`, and its state in Ray's checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

import ray.train
import ray.train.torch

from headrace.loader_base import Loader

_FILE = "headrace-loader.json"

L = TypeVar("L", bound=Loader)


def prepare(loader: L) -> L:
    """Fit a loader to this worker of Ray Train, instead of `ray.train.torch.prepare_data_loader`.

    That one builds a torch loader in its place, without its order, states and options. Here, the loader stays what it
    is: with `shard="auto"`, or reading a stream, it gives every worker its part. Batches go to the worker's device
    ahead of the loop, unless the loader has a `device`. Worker processes are started by a fork server, since forking
    in a Ray worker is not safe.
    """
    device = ray.train.torch.get_device()
    if getattr(loader, "device", device) is None and device.type != "cpu":
        loader.device = device  # type: ignore[attr-defined]
    known: Any = loader
    if known.num_workers and known.engine == "processes" and getattr(known, "multiprocessing_context", "") is None:
        known.multiprocessing_context = "forkserver"
    return loader


def save(loader: Any, directory: str | os.PathLike[str]) -> None:
    """Write the loader's state into the directory that a checkpoint is made of. That of one worker fits all."""
    Path(directory, _FILE).write_text(json.dumps(loader.state_dict()), encoding="utf-8")


def restore(loader: Any) -> bool:
    """Let a loader resume where Ray's latest checkpoint was taken, on whatever number of workers.

    Returns:
        Whether there is such a checkpoint, with a loader's state in it.

    Raises:
        StateError: the state does not fit the loader.
    """
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as directory:
        path = Path(directory, _FILE)
        if not path.exists():
            return False
        loader.load_state_dict(json.loads(path.read_text(encoding="utf-8")))
    return True
