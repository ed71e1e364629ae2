"""A loader inside a worker of another loader."""

from __future__ import annotations

import os
import signal

import pytest

from headrace import DataLoader, WorkerDiedError, get_worker_info
from tests.failures.outcomes import Each, outcomes, plain
from tests.failures.scripts import needs_proc, run_script, script, wait_until_gone


def inner(options):
    def load(index):
        loader = DataLoader(range(index, index + 4), batch_size=2, **options)
        return [plain(batch) for batch in loader]

    return load


@pytest.mark.parametrize("within", [{}, {"num_workers": 1, "engine": "threads"}, {"num_workers": 1}])
@pytest.mark.parametrize("around", [{"num_workers": 1, "engine": "threads"}, {"num_workers": 1}])
def test_batches_are_right(around, within):
    loader = DataLoader(Each(inner(within), 3), batch_size=None, **around)
    assert [plain(batch) for batch in loader] == [[[i, i + 1], [i + 2, i + 3]] for i in range(3)]


def test_each_worker_knows_its_own_number():
    def numbers(index):
        mine = get_worker_info().id
        theirs = [plain(batch)[0] for batch in DataLoader(Each(lambda i: get_worker_info().id, 2), num_workers=2)]
        return [mine, *theirs, get_worker_info().id]

    loader = DataLoader(Each(numbers, 2), batch_size=None, num_workers=2)
    assert [plain(batch) for batch in loader] == [[0, 0, 1, 0], [1, 0, 1, 1]]


def test_the_death_of_an_inner_worker_is_an_error_of_the_sample():
    def load(index):
        def die(i):
            os.kill(os.getpid(), signal.SIGKILL)

        return next(iter(DataLoader(Each(die), num_workers=1)))

    (error,) = outcomes(DataLoader(Each(load, 1), num_workers=1))
    assert type(error) is WorkerDiedError
    assert "SIGKILL" in str(error)
    assert error.__cause__ is not None


NESTED = """
class Outer(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if not hasattr(self, "_inner"):
            self._inner = iter(DataLoader(SlowDataset(range(10_000), 0.01), num_workers=1, output="numpy"))
        return int(next(self._inner)[0])

iterator = iter(DataLoader(Outer(), num_workers=2, output="numpy"))
next(iterator)
"""


@needs_proc
def test_all_leave_when_the_outermost_is_killed(tmp_path):
    with script(tmp_path, NESTED + "print('running', flush=True)\ntime.sleep(60)") as running:
        assert running.read_line() == "running"
        running.kill()
        assert not wait_until_gone(running.group, 5)


@needs_proc
def test_all_leave_when_the_program_ends(tmp_path):
    ended = run_script(tmp_path, NESTED + "print('done')")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "done\n", "")
