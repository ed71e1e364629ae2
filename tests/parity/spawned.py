"""Datasets for workers that are not forked: they import this module, so it imports little."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data


class Augmented(torch_data.Dataset):
    """Samples of several kinds, with random numbers from everywhere."""

    offset = 0

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise LookupError("no sample 7")
        info = torch_data.get_worker_info()
        noise = torch.rand(2, 2, dtype=torch.float64), np.random.rand(3), random.random()
        return {"index": index + self.offset, "noise": noise, "who": (info.id, info.seed), "name": f"é{index}"}

    def __len__(self) -> int:
        return 12


class AugmentedStream(torch_data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        info = torch_data.get_worker_info()
        for index in range(info.id, 11, info.num_workers):
            yield index, torch.full((3, 4), index).bfloat16().T, np.random.rand(), random.random(), torch.rand(1)


def shift(worker: int) -> None:
    """A `worker_init_fn`."""
    torch_data.get_worker_info().dataset.offset = 100 * worker
    torch.rand(worker + 1)
