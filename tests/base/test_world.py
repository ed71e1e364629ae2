"""`get_worker_info`: None in the main process, right in every worker, torch's included; and freed memory is kept."""

from __future__ import annotations

import dataclasses
import platform
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


@needs_torch
def test_worker_info_is_made_as_torchs_is():
    from torch.utils.data._utils.worker import WorkerInfo as Theirs

    ours, theirs = (kind(1, 2, seed=7, dataset="data") for kind in (WorkerInfo, Theirs))
    for field in dataclasses.fields(theirs):
        assert getattr(ours, field.name) == getattr(theirs, field.name)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(ours, field.name, None)
    if hasattr(theirs, "rng"):  # since torch 2.13
        assert repr(ours) == repr(theirs)
        assert [field.name for field in dataclasses.fields(ours)] == [
            field.name for field in dataclasses.fields(theirs)
        ]


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
    assert told == [dataclasses.replace(info, worker_method="thread"), None]
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


ROUNDS = """
import resource, sys
from headrace.base.world import keep_freed_memory

def make_rows():
    return [bytes(i) for i in range(2048, 4096)]

if sys.argv[1] == "keep":
    keep_freed_memory()
make_rows()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    make_rows()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def new_pages(argument):
    """How many pages the system hands out for the rows of ten rounds, each freed before the next."""
    run = subprocess.run([sys.executable, "-c", ROUNDS, argument], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is so quick to give memory back")
def test_rows_are_made_in_memory_that_was_freed():
    assert new_pages("keep") * 10 < new_pages("leave")
