"""What is told of workers that died, hang or cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from headrace import WorkerDiedError, WorkerTimeoutError
from headrace.base.messages import PackedIndices, Pull, Task, decoded
from headrace.engines import launch
from headrace.engines.fleet import describe_restart
from headrace.engines.process_worker import LOST_CONNECTION
from headrace.engines.reports import describe_death
from headrace.engines.worker import key_at, place_of
from tests.engines.jobs import Gated, job, processes, run, wait_for


class Ended:
    def __init__(self, exitcode):
        self.exitcode = exitcode
        self.pid = 123


TASK = Task(4, PackedIndices(np.array([10, 20, 30])), 1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGKILL, ["killed by signal SIGKILL", "memory runs out", "prefetch_factor"]),
        (-signal.SIGBUS, ["killed by signal SIGBUS", "shared memory"]),
        (-signal.SIGSEGV, ["killed by signal SIGSEGV", "compiled code", "spawn"]),
        (-signal.SIGTERM, ["killed by signal SIGTERM"]),
        (-63, ["killed by signal 63"]),
        (3, ["left with exit code 3"]),
        (0, ["left with exit code 0"]),
        (LOST_CONNECTION, ["lost its connection", "close file descriptors"]),
    ],
)
def test_how_a_worker_died(code, words):
    text = describe_death(2, Ended(code), (TASK, 1), was_ready=True)
    assert "DataLoader worker 2 (pid(s) 123) exited unexpectedly" in text  # torch's words
    assert "batch 4, sample 20" in text
    for word in words:
        assert word in text


def test_where_a_worker_died():
    assert "while it was idle" in describe_death(0, Ended(1), None, was_ready=True)
    early = describe_death(0, Ended(1), None, was_ready=False)
    assert "as it started" in early
    assert "on stderr" in early


def test_only_workers_that_import_the_script_are_told_of_a_guard():
    """Forked workers do not, nor do those that get all they need by value."""
    importing, other = Ended(1), Ended(1)
    setattr(importing, launch._REASON, "dataset.lock cannot be pickled")
    text = describe_death(0, importing, None, was_ready=False)
    assert '__name__ == "__main__"' in text
    assert "because dataset.lock cannot be pickled" in text
    assert "__main__" not in describe_death(0, other, None, was_ready=False)


def test_a_script_without_guard():
    ended = Ended(launch.NO_GUARD)
    assert "would have started workers of its own as it started" in describe_death(0, ended, None, was_ready=False)


def test_leaving_by_itself_is_explained():
    assert "sys.exit()" in describe_death(0, Ended(0), (TASK, 1), was_ready=True)


def test_a_restart_is_told_with_the_death():
    death = describe_death(2, Ended(-signal.SIGKILL), (TASK, 1), was_ready=True)
    text = describe_restart(death)
    for words in ("worker 2", "SIGKILL", "batch 4, sample 20", "takes its place"):
        assert words in text


def test_places_in_words():
    assert place_of(TASK, 2) == "batch 4, sample 30"
    assert place_of(TASK, -1) == "batch 4, keys [10, 20, 30]"
    assert place_of(Task(1, Pull(5)), 3) == "batch 1, its sample 3"
    assert place_of(Task(1, Pull(5)), -1) == "batch 1"
    assert place_of(Task(1, "key"), -1) == "batch 1, keys 'key'"
    assert len(place_of(Task(1, list(range(10**5))), -1)) < 300
    assert [key_at(TASK, position) for position in (0, 2, -1)] == [10, 30, [10, 20, 30]]
    assert key_at(Task(1, Pull(5)), 1) is None


class Deadly:
    def __init__(self, how):
        self.how = how

    def __getitem__(self, index):
        if index == 5:
            if isinstance(self.how, signal.Signals):
                os.kill(os.getpid(), self.how)
                time.sleep(60)
            os._exit(self.how)
        return index


@pytest.mark.parametrize(("how", "words"), [(signal.SIGKILL, "SIGKILL"), (9, "exit code 9"), (0, "exit code 0")])
def test_a_death_is_told_with_its_place(how, words):
    engine = processes("fork", workers=1)
    engine.start(job(Deadly(how)))
    with pytest.raises(WorkerDiedError, match=words) as caught:
        list(run(engine, [[3, 4, 5, 6]]))
    assert "batch 0, sample 5" in str(caught.value)
    engine.close()


def test_a_worker_that_hangs_shows_its_stack(tmp_path):
    engine = processes("fork", timeout=0.5)
    engine.start(job(Gated(tmp_path)))
    engine.submit(Task(0, [7], 0))
    wait_for(tmp_path / "begun-7")
    with pytest.raises(WorkerTimeoutError, match=r"timed out after 0\.5 seconds") as caught:
        engine.receive()
    text = str(caught.value)
    assert "Worker 0 (pid " in text
    assert "batch 0, sample 7" in text
    assert "wait_for" in text  # where it hangs
    assert "__getitem__" in text
    (tmp_path / "open").touch()
    assert decoded(engine.receive()).batch == [7]  # and the engine goes on
    engine.close()


def test_too_few_descriptors_are_told_with_numbers():
    script = """
import os, resource
import headrace

limit = len(os.listdir("/proc/self/fd")) + 12
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    next(iter(headrace.DataLoader([1, 2], num_workers=20, multiprocessing_context="fork")))
except headrace.WorkerStartError as error:
    assert str(limit) in str(error), error
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "Too many open files" in result.stdout, result.stderr
    assert "ulimit -n" in result.stdout
