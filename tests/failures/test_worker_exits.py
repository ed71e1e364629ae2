"""A worker that leaves by itself, in the middle of a sample."""

from __future__ import annotations

import os
import sys

import pytest

from headrace import DataLoader, WorkerDiedError, WorkerError
from headrace.testing import DyingDataset
from tests.failures.outcomes import Each, until
from tests.failures.test_worker_killed import until_death


def test_os_exit_is_told_with_code_and_sample():
    _, error = until_death(DataLoader(DyingDataset(range(8), {5: "exit"}), num_workers=2))
    assert "left with exit code 3 at batch 5, sample 5" in str(error)
    assert "DataLoader worker 1 (pid(s) " in str(error)


def test_os_exit_with_zero_is_no_success():
    _, error = until_death(DataLoader(Each(lambda index: os._exit(0), 2), num_workers=1))
    assert "left with exit code 0 at batch 0, sample 0" in str(error)


@pytest.mark.parametrize("code", [0, 5])
def test_sys_exit_in_a_worker_process_is_an_error_that_tells_where(code):
    iterator = iter(DataLoader(Each(lambda index: sys.exit(code) if index == 0 else index, 2), num_workers=1))
    with pytest.raises(WorkerError, match=rf"SystemExit\({code}\) was raised") as caught:
        next(iterator)
    assert "batch 0, sample 0" in str(caught.value.__cause__)
    assert "sys.exit(code)" in str(caught.value.__cause__)
    assert next(iterator).tolist() == [1]


def test_sys_exit_in_a_thread_reaches_the_loop_as_it_does_without_workers():
    for options in ({}, {"num_workers": 1, "engine": "threads"}):
        iterator = iter(DataLoader(Each(lambda index: sys.exit(5) if index == 0 else index, 2), **options))
        with pytest.raises(SystemExit) as caught:
            next(iterator)
        assert caught.value.code == 5
        assert next(iterator).tolist() == [1]


def test_leaving_in_the_collation():
    _, error = until_death(DataLoader(range(4), num_workers=1, collate_fn=lambda samples: os._exit(4)))
    assert "left with exit code 4 at batch 0" in str(error)


def test_leaving_as_it_starts():
    with pytest.raises(WorkerDiedError, match="left with exit code 6 as it started") as caught:
        next(iter(DataLoader(range(4), num_workers=2, worker_init_fn=lambda number: os._exit(6))))
    assert "__main__" not in str(caught.value)  # it got all it needs, and imports no script


def test_leaving_while_the_batch_is_sent():
    class Leaves:
        def __reduce__(self):
            os._exit(7)

    _, error = until_death(DataLoader(range(4), num_workers=1, collate_fn=lambda samples: Leaves()))
    assert "left with exit code 7" in str(error)
    assert "batch 0" in str(error)


def test_all_that_was_sent_before_comes_before_the_error():
    """The worker's batches lie ready in the socket when it dies, so none of them is lost."""
    loader = DataLoader(DyingDataset(range(4), {3: "exit"}), num_workers=1, prefetch_factor=4)
    seen, _ = until(WorkerDiedError, iter(loader))
    assert seen == [[0], [1], [2]]
