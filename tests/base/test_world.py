"""`get_worker_info`: None in the main process, and the truth inside torch's workers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading

import pytest

from headrace import WorkerInfo, get_worker_info
from headrace.base.world import enter_worker_thread
from tests.needs import needs_torch


def test_the_main_process_is_no_worker():
    assert get_worker_info() is None


def test_worker_info_is_frozen():
    info = WorkerInfo(id=0, num_workers=2, seed=7, dataset=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.id = 1


def test_a_thread_that_is_a_worker_is_the_only_one():
    info = WorkerInfo(id=1, num_workers=2, seed=7, dataset="data")
    told = []

    def work():
        enter_worker_thread(info)
        told.append(get_worker_info())
        child = threading.Thread(target=lambda: told.append(get_worker_info()))
        child.start()
        child.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told == [info, None]
    assert get_worker_info() is None


ENTER = """
import sys, threading
from headrace import WorkerInfo, get_worker_info
from headrace.base.world import enter_worker_process
info = WorkerInfo(id=1, num_workers=2, seed=7, dataset="data")
enter_worker_process(info)
told = [get_worker_info()]
thread = threading.Thread(target=lambda: told.append(get_worker_info()))
thread.start()
thread.join()
assert told == [info, info]
assert "torch" not in sys.modules
"""


def test_a_process_that_is_a_worker_is_one_in_all_its_threads():
    subprocess.run([sys.executable, "-c", ENTER], check=True, timeout=60)


@needs_torch
@pytest.mark.parametrize("order", ["before", "after"])
def test_torch_is_told_whenever_it_is_imported(order):
    check = """
import torch
theirs = torch.utils.data.get_worker_info()
assert (theirs.id, theirs.num_workers, theirs.seed, theirs.dataset) == (1, 2, 7, "data")
"""
    enter = ENTER.replace('assert "torch" not in sys.modules', "")
    script = ENTER + check if order == "after" else "import torch" + enter + check
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


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
