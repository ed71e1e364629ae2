"""A worker that is killed, or crashes: the loop hears of it at once, with the reason and the sample."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from contextlib import closing

import pytest

from headrace import DataLoader, WorkerDiedError
from headrace.testing import DyingDataset, SlowDataset
from tests.failures.outcomes import Each, plain, until
from tests.failures.scripts import children, needs_proc, run_script


def until_death(loader):
    """The batches before a worker's death, and the error."""
    with closing(iter(loader)) as iterator:
        batches, error = until(WorkerDiedError, iterator)
        with pytest.raises(WorkerDiedError):  # and it stays so
            next(iterator)
    return batches, error


@pytest.mark.parametrize(("how", "name"), [("kill", "SIGKILL"), ("segv", "SIGSEGV")])
def test_signal_worker_batch_and_sample_are_named(how, name):
    batches, error = until_death(DataLoader(DyingDataset(range(16), {11: how}), batch_size=2, num_workers=2))
    assert batches == [[i, i + 1] for i in range(0, 2 * len(batches), 2)]
    assert len(batches) <= 5
    assert "exited unexpectedly" in str(error)  # torch's words
    assert f"killed by signal {name} at batch 5, sample 11" in str(error)
    assert "DataLoader worker 1 (pid(s) " in str(error)
    assert isinstance(error, RuntimeError)


def test_a_kill_for_want_of_memory_is_thought_of():
    _, error = until_death(DataLoader(DyingDataset(range(4), {0: "kill"}), num_workers=1))
    assert "memory" in str(error)


def test_a_crash_in_compiled_code():
    def crash(index):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # without the report of pytest
        return ctypes.string_at(0) if index == 2 else index

    batches, error = until_death(DataLoader(Each(crash, 4), num_workers=1))
    assert batches in ([], [[0]], [[0], [1]])
    assert "SIGSEGV at batch 2, sample 2" in str(error)
    assert "multiprocessing_context='spawn'" in str(error)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGABRT, signal.SIGBUS])
def test_other_signals_are_named(number):
    def die(index):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    _, error = until_death(DataLoader(Each(die, 2), num_workers=1))
    assert f"killed by signal {number.name}" in str(error)


@needs_proc
def test_a_worker_that_is_killed_while_idle():
    iterator = iter(DataLoader(range(100), num_workers=2, prefetch_factor=1))
    next(iterator)
    time.sleep(0.1)
    os.kill(min(children(os.getpid())), signal.SIGKILL)
    _, error = until(WorkerDiedError, iterator)
    assert "killed by signal SIGKILL while it was idle" in str(error)


def test_a_stream():
    from tests.failures.test_exception_in_stream import Stream

    class Deadly(Stream):
        def __iter__(self):
            for number in super().__iter__():
                if number == 7:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield number

    batches, error = until_death(DataLoader(Deadly(20), batch_size=2, num_workers=2))
    assert batches == [[0, 2], [1, 3], [4, 6], [5, 7]][: len(batches)]
    assert "worker 1" in str(error)
    assert "at batch 3" in str(error)
    assert "its sample 0." not in str(error)  # which was fine


def test_without_order():
    loader = DataLoader(DyingDataset(range(16), {7: "kill"}), num_workers=2, in_order=False)
    _, error = until_death(loader)
    assert "sample 7" in str(error)


def test_the_next_epoch_has_new_workers(tmp_path):
    loader = DataLoader(DyingDataset(range(4), {2: "kill"}, once_in=tmp_path), num_workers=2)
    until_death(loader)
    assert [plain(batch) for batch in loader] == [[0], [1], [2], [3]]


def test_the_next_epoch_of_persistent_workers_has_new_ones(tmp_path):
    dataset = DyingDataset(range(4), {2: "kill"}, once_in=tmp_path)
    loader = DataLoader(dataset, num_workers=2, persistent_workers=True)
    until_death(loader)
    assert [plain(batch) for batch in loader] == [[0], [1], [2], [3]]
    assert [plain(batch) for batch in loader] == [[0], [1], [2], [3]]
    loader.close()


@needs_proc
def test_a_child_of_the_worker_that_lives_on_does_not_hide_its_death(tmp_path):
    source = """
    class Forking(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 2:
                if os.fork() == 0:  # it inherits all that the worker has open
                    time.sleep(8)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    start = time.monotonic()
    try:
        list(DataLoader(Forking(), num_workers=2, output="numpy"))
    except RuntimeError as error:
        print("SIGKILL" in str(error), time.monotonic() - start < 5, flush=True)
    os.killpg(0, signal.SIGKILL)
    """
    ended = run_script(tmp_path, source)
    assert ended.stdout == "True True\n"


@needs_proc
@pytest.mark.filterwarnings("ignore:DataLoader worker .* exited unexpectedly")
@pytest.mark.parametrize("method", ["raise", "restart"])
def test_all_workers_at_once(method):
    """As when somebody kills all of them, or the memory is gone."""
    loader = DataLoader(SlowDataset(range(40), 0.01), num_workers=2, on_worker_death=method)
    iterator = iter(loader)
    seen = [plain(next(iterator))]
    both = children(os.getpid())
    assert len(both) == 2
    for pid in both:
        os.kill(pid, signal.SIGSTOP)
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)  # the loop finds both dead in one look
    if method == "raise":
        _, error = until(WorkerDiedError, iterator)
        assert "SIGKILL" in str(error)
    else:
        seen += [plain(batch) for batch in iterator]
        assert seen == [[i] for i in range(40)]
