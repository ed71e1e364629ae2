"""Starting workers: what a dataset may be made of, whatever the start method."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from headrace import DataLoader, Dataset
from headrace.base.errors import WorkerStartError
from headrace.engines import launch
from tests.engines.jobs import START_METHODS, job, processes, run
from tests.needs import needs_torch


class Counting(Dataset):
    """Counts in memory that all processes share, under a lock, and talks through a queue."""

    def __init__(self, context):
        self.count = context.Value("i", 0)
        self.lock = context.Lock()
        self.queue = context.Queue()
        self.event = context.Event()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with self.lock:
            self.count.value += 1
        self.queue.put(index)
        self.event.set()
        return index


@pytest.mark.parametrize("start_method", START_METHODS)
def test_locks_queues_values_and_events_of_multiprocessing_are_shared(start_method):
    context = multiprocessing.get_context(start_method)
    dataset = Counting(context)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=context, output="numpy")
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert dataset.count.value == 8
    assert dataset.event.is_set()
    assert sorted(dataset.queue.get(timeout=10) for _ in range(8)) == list(range(8))
    dataset.queue.close()
    dataset.queue.join_thread()


class Writing(Dataset):
    """Writes into a tensor that the loader sees."""

    def __init__(self, seen):
        self.seen = seen

    def __len__(self):
        return len(self.seen)

    def __getitem__(self, index):
        self.seen[index] = index + 1
        return self.seen[index].clone()


@needs_torch
@pytest.mark.parametrize("start_method", START_METHODS)
def test_shared_tensors_in_a_dataset_are_shared(start_method):
    import torch

    seen = torch.zeros(4).share_memory_()
    loader = DataLoader(Writing(seen), batch_size=2, num_workers=1, multiprocessing_context=start_method)
    assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]
    assert seen.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_large_arrays_in_a_dataset_arrive(start_method):
    engine = processes(start_method, workers=1)
    engine.start(job(np.arange(10**6).reshape(-1, 10)))
    (outcome,) = run(engine, [[99_999]])
    assert outcome.batch[0].tolist() == list(range(999_990, 10**6))
    engine.close()


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_what_cannot_be_sent_is_told_with_a_remedy(start_method):
    class Open(Dataset):
        def __init__(self):
            self.lock = threading.Lock()

    engine = processes(start_method)
    with pytest.raises(WorkerStartError, match="must be picklable") as caught:
        engine.start(job(Open()))
    text = str(caught.value)
    assert "but dataset.lock cannot be pickled (TypeError: cannot pickle '_thread.lock' object)" in text
    assert text.count("cannot pickle") == 1
    assert "__getitem__" in text
    assert repr(start_method) in text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    engine.close()


@pytest.mark.parametrize(
    ("output", "is_running", "chosen", "method"),
    [
        ("jax", False, "fork", "forkserver"),
        ("jax", True, None, "forkserver"),
        ("jax", True, "spawn", None),
        ("numpy", True, "fork", "forkserver"),
        ("numpy", True, "spawn", None),
        ("numpy", False, "fork", None),
        ("torch", True, "fork", None),  # as torch's own workers
    ],
)
def test_how_workers_start_if_nobody_says(monkeypatch, output, is_running, chosen, method):
    monkeypatch.setattr(launch, "_jax_is_running", lambda: is_running)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: chosen)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["fork", "spawn", "forkserver"])
    context = launch.default_context(output)
    assert (None if context is None else context.get_start_method()) == method


def test_with_jax_in_use_workers_that_give_numpy_arrays_are_not_forked():
    pytest.importorskip("jax")
    script = """
import sys, warnings
warnings.simplefilter("error")  # JAX warns of a fork
import jax, headrace
from headrace.engines.launch import default_context

class Plain(headrace.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return int("jax" in sys.modules)

assert default_context("numpy") is None  # imported, but not in use
jax.numpy.zeros(1).block_until_ready()
for loader in (headrace.DataLoader(Plain(), 2, num_workers=1, output="numpy"),) * 2:
    print([batch.tolist() for batch in loader])
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stdout == "[[0, 0]]\n" * 2, result.stderr


def test_under_fork_anything_goes():
    class Open(Dataset):
        def __init__(self):
            self.lock = threading.Lock()

        def __getitem__(self, index):
            with self.lock:
                return index

    engine = processes("fork", workers=1)
    engine.start(job(Open()))
    assert [outcome.batch for outcome in run(engine, [[5]])] == [[5]]
    engine.close()


def test_others_start_processes_as_ever():
    """Loaders do not change what `multiprocessing` tells the processes that others start."""
    from multiprocessing import spawn

    engine = processes("spawn", workers=1)
    engine.start(job("ab"))
    engine.close()
    data = spawn.get_preparation_data("name")
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None or getattr(main, "__file__", None) is not None:
        assert "init_main_from_name" in data or "init_main_from_path" in data


@needs_torch
def test_a_spawned_worker_imports_torch_only_if_the_dataset_does(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("""
import sys, torch, headrace

class Plain(headrace.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return int("torch" in sys.modules), int("numpy" in sys.modules)

loader = headrace.DataLoader(Plain(), 2, num_workers=1, multiprocessing_context="spawn")
for torch_is_there, numpy_is_there in loader:
    assert type(torch_is_there) is torch.Tensor
    print(torch_is_there.tolist(), numpy_is_there.tolist())
""")
    result = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[0, 0] [1, 1]", result.stderr


def test_a_script_that_must_be_imported_and_has_no_guard_is_told_about_it(tmp_path):
    """Where things cannot be sent by value, the script is imported as `multiprocessing` always did."""
    (tmp_path / "script.py").write_text("""
import multiprocessing
import os
import headrace

loader = headrace.DataLoader([1, 2], num_workers=1, multiprocessing_context="spawn")
worker = multiprocessing.get_context("spawn").Process(target=print, args=("hello",))
if multiprocessing.current_process().name != "MainProcess":
    list(loader)  # in a process that is being started
else:
    worker.start()
    worker.join()
""")
    result = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert "must not be started while a worker starts" in result.stderr
    assert '__name__ == "__main__"' in result.stderr


class Nested(Dataset):
    """Loads with workers itself."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        inner = DataLoader(range(4), batch_size=2, num_workers=1, multiprocessing_context="fork", output="numpy")
        return sum(int(batch.sum()) for batch in inner) + index


def test_workers_may_have_workers():
    loader = DataLoader(Nested(), batch_size=2, num_workers=1, multiprocessing_context="fork", output="numpy")
    assert [batch.tolist() for batch in loader] == [[6, 7]]


class Niceness(Dataset):
    """Of the process that is asked."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return os.nice(0)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_give_way_to_the_loop(start_method):
    [batch] = DataLoader(Niceness(), batch_size=2, num_workers=1, multiprocessing_context=start_method, output="numpy")
    assert batch.tolist() == [min(os.nice(0) + 2, 19)] * 2  # no process is nicer than that
