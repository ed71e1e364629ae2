"""Workers are forked while other threads run in the process of the loop."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from headrace import DataLoader
from tests.failures.outcomes import Each, outcomes
from tests.failures.scripts import needs_proc, run_script
from tests.needs import needs_torch


@contextmanager
def running(function):
    """Call `function` again and again in a thread."""
    stop = threading.Event()

    def repeat():
        while not stop.is_set():
            function()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class SlowHandler(logging.Handler):
    """Holds its lock most of the time."""

    def emit(self, record):
        time.sleep(0.001)


@pytest.mark.timeout(60)
def test_a_thread_that_logs():
    """A worker must not inherit the lock of a handler that another thread holds."""
    logger = logging.getLogger("headrace-test-threads")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = SlowHandler()
    logger.addHandler(handler)

    def log(index):
        logger.info("sample %s", index)
        return index

    try:
        with running(lambda: logger.info("still here")):
            for _ in range(5):
                assert outcomes(DataLoader(Each(log, 4), num_workers=2)) == [[0], [1], [2], [3]]
    finally:
        logger.removeHandler(handler)


@pytest.mark.timeout(60)
def test_a_thread_that_holds_a_lock_of_its_own():
    lock = threading.Lock()
    with lock, running(lambda: lock.acquire(timeout=0.01) and lock.release()):
        for _ in range(3):
            assert outcomes(DataLoader(range(4), num_workers=2)) == [[0], [1], [2], [3]]


@pytest.mark.timeout(60)
def test_a_thread_that_loads_too():
    """Two loops in two threads, both with workers that start while the other's run."""
    seen = []

    def load():
        seen.append(outcomes(DataLoader(range(6), num_workers=2)))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[[i] for i in range(6)]] * 3


@pytest.mark.timeout(60)
def test_numpy_has_computed_before():
    """Its BLAS has threads of its own, which do not live on in a forked worker."""
    np.linalg.svd(np.eye(300))
    loader = DataLoader(Each(lambda i: np.linalg.svd(np.eye(60) * i)[1], 4), num_workers=2)
    assert [batch[0][0] for batch in outcomes(loader)] == [0, 1, 2, 3]


@needs_torch
@pytest.mark.timeout(60)
def test_torch_has_computed_before():
    """Its pool of threads does not live on in a forked worker, and must not be waited for there."""
    import torch

    big = torch.ones(400, 400)
    assert (big @ big)[0, 0] == 400

    def multiply(index):
        matrix = torch.full((400, 400), float(index))
        return (matrix @ matrix).sum()

    assert outcomes(DataLoader(Each(multiply, 3), num_workers=2)) == [[0.0], [400.0**3], [4 * 400.0**3]]


@needs_proc
def test_a_thread_that_prints(tmp_path):
    source = """
    stop = threading.Event()

    def chatter():
        while not stop.is_set():
            print("x" * 50)

    thread = threading.Thread(target=chatter)
    thread.start()

    class Talking(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            print("sample", index)
            return index

    good = 0
    for _ in range(5):
        good += [batch.tolist() for batch in DataLoader(Talking(), num_workers=2, output="numpy")] == [
            [i] for i in range(6)
        ]
    stop.set()
    thread.join()
    print("good", good)
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "good 5"


@needs_proc
def test_a_thread_that_imports_what_the_worker_imports_too(tmp_path):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\nvalue = 7\n")
    source = """
    sys.path.insert(0, os.getcwd())

    def value_of(index):
        import slow_to_import

        return slow_to_import.value + index

    class Importing(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return value_of(index)

    thread = threading.Thread(target=value_of, args=(0,))
    thread.start()
    while "slow_to_import" not in sys.modules:
        time.sleep(0.001)
    loader = DataLoader(Importing(), num_workers=1, output="numpy", multiprocessing_context="fork", timeout=10)
    print([batch.tolist() for batch in loader])
    thread.join()
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout == "[[7], [8]]\n"


@needs_proc
def test_many_threads_that_load_for_the_first_time(tmp_path):
    source = """
    found = []

    def load():
        loader = DataLoader(list(range(100)), batch_size=7, num_workers=1, multiprocessing_context="fork", timeout=20)
        found.append(sum(int(batch.sum()) for batch in loader))

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(found)
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout == f"{[4950] * 6}\n"
