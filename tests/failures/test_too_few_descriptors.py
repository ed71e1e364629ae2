"""A low limit of open files: the loader works, or says which limit to raise."""

from __future__ import annotations

import os

import pytest

from headrace import DataLoader, WorkerStartError
from headrace.engines import launch
from tests.failures.scripts import needs_proc, run_script

SOURCE = """
import resource, warnings

warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
before = len(os.listdir("/proc/self/fd"))
try:
    seen = [batch.tolist() for batch in DataLoader(range(40), num_workers={workers}, output="numpy", {options})]
    print("works", seen == [[i] for i in range(40)])
except RuntimeError as error:
    print("fails", type(error).__name__, "ulimit -n" in str(error), "{workers} workers" in str(error))
    del error
import multiprocessing
print(multiprocessing.active_children(), len(os.listdir("/proc/self/fd")) - before)
assert [batch.tolist() for batch in DataLoader(range(2), num_workers=1, output="numpy")] == [[0], [1]]
"""


@needs_proc
@pytest.mark.parametrize(("workers", "expected"), [(2, "works True"), (4, "works True")])
def test_a_few_workers_work(tmp_path, workers, expected):
    ended = run_script(tmp_path, SOURCE.format(workers=workers, options=""))
    assert ended.stdout.splitlines() == [expected, "[] 0"], ended.stderr
    assert (ended.code, ended.stderr) == (0, "")


def check_failure(ended, kept=2):
    """Clear, and nothing is left but what multiprocessing itself forgets to close when its second pipe fails."""
    assert ended.code == 0, ended.stderr
    first, second = ended.stdout.splitlines()
    assert first == "fails WorkerStartError True True"
    assert second.startswith("[] ")
    assert int(second.removeprefix("[] ")) <= kept


@needs_proc
def test_twenty_workers_do_not_fit_and_nothing_is_left(tmp_path):
    ended = run_script(tmp_path, SOURCE.format(workers=20, options=""))
    check_failure(ended)
    assert ended.stderr == ""


@needs_proc
def test_twenty_workers_that_are_kept(tmp_path):
    ended = run_script(tmp_path, SOURCE.format(workers=20, options="persistent_workers=True"))
    check_failure(ended)


@needs_proc
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods_say_so_too(tmp_path, method):
    """Their own helpers (the tracker of resources, the fork server) keep a few descriptors for good."""
    ended = run_script(tmp_path, SOURCE.format(workers=20, options=f"multiprocessing_context={method!r}"))
    check_failure(ended, kept=8)


@needs_proc
def test_many_kept_batches_need_no_descriptors(tmp_path):
    source = """
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = list(DataLoader(np.zeros((300, 2**16), np.uint8), num_workers=2, output="numpy"))
    print(len(kept))
    """
    ended = run_script(tmp_path, source)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "300\n", "")


@pytest.mark.parametrize("call", range(3))
def test_no_process_can_be_started(monkeypatch, call):
    """The processes that were started before the one that could not are ended."""
    start = launch._start
    calls = []

    def refuse_some(*args):
        calls.append(args)
        if len(calls) > call:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start(*args)

    monkeypatch.setattr(launch, "_start", refuse_some)
    monkeypatch.setattr("headrace.arguments.warn_of_many_workers", lambda number, engine: None)
    monkeypatch.setattr("headrace.loader.warn_of_many_workers", lambda number, engine: None)
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    with pytest.raises(WorkerStartError, match="could not be started"):
        next(iter(DataLoader(range(4), num_workers=3)))
    assert len(calls) == call + 1
    assert not before or len(os.listdir("/proc/self/fd")) <= before
