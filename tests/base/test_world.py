"""`get_worker_info`: None in the main process, and the truth inside torch's workers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from headrace import WorkerInfo, get_worker_info
from tests.needs import needs_torch


def test_the_main_process_is_no_worker():
    assert get_worker_info() is None


def test_worker_info_is_frozen():
    info = WorkerInfo(id=0, num_workers=2, seed=7, dataset=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.id = 1


@needs_torch
def test_a_worker_of_torchs_own_loader_is_recognised():
    script = """
import torch, headrace

class Dataset(headrace.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        info = headrace.get_worker_info()
        return info.id, info.num_workers, len(info.dataset)

loader = torch.utils.data.DataLoader(Dataset(), batch_size=2, num_workers=2, multiprocessing_context="fork")
print([[column.tolist() for column in batch] for batch in loader])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[[[0, 0], [2, 2], [4, 4]], [[1, 1], [2, 2], [4, 4]]]"
