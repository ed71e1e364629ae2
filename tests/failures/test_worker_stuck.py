"""A worker that is stuck: with a `timeout` the loop is told which sample, and where in the code."""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings
from contextlib import closing

import pytest

from headrace import DataLoader, WorkerTimeoutError
from headrace.deliver.device import Delivery
from headrace.testing import DyingDataset
from tests.failures.outcomes import Each, plain, until
from tests.failures.scripts import needs_proc, run_script


def stuck_in_sleep(index):
    if index == 3:
        time.sleep(60)
    return index


def stuck_in_a_lock(index):
    if index == 3:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    return index


def stuck_in_a_loop(index):
    while index == 3:
        pass
    return index


def until_timeout(loader):
    with closing(iter(loader)) as iterator:
        batches, error = until(WorkerTimeoutError, iterator)
    return batches, str(error)


@pytest.mark.parametrize("function", [stuck_in_sleep, stuck_in_a_lock, stuck_in_a_loop])
def test_worker_sample_and_stack_are_shown(short_grace, function):
    batches, text = until_timeout(DataLoader(Each(function, 12), num_workers=2, timeout=1))
    assert batches == [[0], [1], [2]]
    assert "DataLoader timed out after 1 seconds" in text  # torch's words
    assert "Worker 1 (pid " in text
    assert "batch 3, sample 3" in text
    assert f"in {function.__name__}" in text


@pytest.mark.parametrize("prepares", [False, True])
def test_a_worker_that_is_known_to_be_stuck_is_not_waited_for_again(prepares, monkeypatch):
    if prepares:
        monkeypatch.setattr("headrace.epochs.plan_delivery", lambda *_: Delivery(prepare=lambda batch: batch))
    iterator = iter(DataLoader(Each(stuck_in_sleep, 12), num_workers=2, timeout=1))
    until(WorkerTimeoutError, iterator)
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < 3  # a worker that may still finish its sample gets 5 seconds


def test_the_error_is_a_runtime_error_as_torchs(short_grace):
    with pytest.raises(RuntimeError, match=r"timed out after 0\.5 seconds"):
        list(DataLoader(DyingDataset(range(4), {0: "stuck"}), num_workers=1, timeout=0.5))


def test_stuck_in_the_collation(short_grace):
    def collate_for_ever(samples):
        time.sleep(60)

    _, text = until_timeout(DataLoader(range(4), collate_fn=collate_for_ever, num_workers=1, timeout=0.5))
    assert "batch 0" in text
    assert "in collate_for_ever" in text


def test_stuck_as_it_starts(short_grace):
    def start_for_ever(number):
        time.sleep(60)

    _, text = until_timeout(DataLoader(range(4), worker_init_fn=start_for_ever, num_workers=1, timeout=0.5))
    assert "has not started yet" in text
    assert "in start_for_ever" in text


def test_workers_that_do_their_work_are_not_accused(short_grace):
    _, text = until_timeout(DataLoader(Each(stuck_in_sleep, 12), num_workers=2, timeout=0.5))
    assert "Worker 0" not in text


def test_who_waits_again_gets_the_batch_after_all():
    def slow(index):
        time.sleep(1.2 if index == 1 else 0)
        return index

    iterator = iter(DataLoader(Each(slow, 3), num_workers=1, timeout=0.3))
    assert plain(next(iterator)) == [0]
    seen, waits = [], 0
    while len(seen) < 2:
        try:
            seen.append(plain(next(iterator)))
        except WorkerTimeoutError:
            waits += 1
    assert seen == [[1], [2]]
    assert 1 <= waits < 10


def test_asking_for_the_stack_disturbs_no_sample():
    """The signal interrupts the sleep, which goes on: the sample comes out as if nothing had been asked."""

    def slow(index):
        start = time.monotonic()
        time.sleep(1)
        return time.monotonic() - start

    iterator = iter(DataLoader(Each(slow, 1), num_workers=1, timeout=0.2))
    with pytest.raises(WorkerTimeoutError):
        next(iterator)
    while True:
        try:
            assert next(iterator)[0] >= 1
            break
        except WorkerTimeoutError:
            pass


def test_a_time_out_counts_the_wait_for_the_workers_and_not_the_work_of_the_loop():
    for batch in DataLoader(range(3), num_workers=1, timeout=0.3):
        time.sleep(0.4)
        assert batch is not None


def test_a_stuck_thread():
    release = threading.Event()

    def stuck_in_an_event(index):
        if index == 3:
            release.wait(20)
        return index

    iterator = iter(DataLoader(Each(stuck_in_an_event, 6), num_workers=2, timeout=0.5, engine="threads"))
    _, error = until(WorkerTimeoutError, iterator)
    release.set()
    text = str(error)
    assert "DataLoader timed out after 0.5 seconds" in text
    assert "Worker 1" in text
    assert "batch 3, sample 3" in text
    assert "in stuck_in_an_event" in text
    assert [plain(batch) for batch in iterator] == [[3], [4], [5]]


def test_a_thread_that_is_stuck_as_it_starts():
    release = threading.Event()

    def start_slowly(number):
        release.wait(20)

    iterator = iter(DataLoader(range(2), num_workers=1, worker_init_fn=start_slowly, timeout=0.3, engine="threads"))
    with pytest.raises(WorkerTimeoutError, match=r"Worker 0 .* has not started yet") as caught:
        next(iterator)
    release.set()
    assert "in start_slowly" in str(caught.value)
    assert [plain(batch) for batch in iterator] == [[0], [1]]


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_without_a_timeout_a_stuck_worker_is_told_in_one_warning(monkeypatch, engine):
    """The sample ends when the warning has come; then it takes longer than another one would."""
    release = threading.Event() if engine == "threads" else multiprocessing.get_context("fork").Event()
    told = []

    def stuck_in_an_event(index):
        if index == 1:
            release.wait(20)
            time.sleep(0.2)
        return index

    def show(message, category, filename, *rest):
        told.append((str(message), filename))
        release.set()

    loader = DataLoader(Each(stuck_in_an_event, 3), num_workers=1, engine=engine)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")  # JAX's
        warnings.showwarning = show
        iterator = iter(loader)
        assert plain(next(iterator)) == [0]  # however long a worker takes to start
        monkeypatch.setattr("headrace.engines.timeouts._STALL_S", 0.05)
        assert [plain(batch) for batch in iterator] == [[1], [2]]
    ((text, filename),) = told
    assert text.startswith("No batch has come for 0 seconds. Worker 0 (")
    assert ") is at batch 1, sample 1:" in text
    assert "in stuck_in_an_event" in text
    assert filename == __file__


@needs_proc
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_that_is_still_starting_is_not_harmed(tmp_path, method):
    """Asking for its stack must not end a process that does not know yet how to answer."""
    source = f"""
    from headrace import WorkerTimeoutError

    iterator = iter(
        DataLoader(range(4), num_workers=1, output="numpy", multiprocessing_context="{method}", timeout=0.02)
    )
    waits, seen = 0, []
    while len(seen) < 4:
        try:
            seen.append(next(iterator).tolist())
        except WorkerTimeoutError:
            waits += 1
    print(seen)
    """
    ended = run_script(tmp_path, source)
    assert ended.stdout == "[[0], [1], [2], [3]]\n", ended.stderr
