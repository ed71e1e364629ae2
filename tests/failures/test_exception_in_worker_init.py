"""An exception in `worker_init_fn`: it is told, and the epoch ends."""

from __future__ import annotations

import traceback

import pytest

from headrace import DataLoader, WorkerError
from tests.failures.outcomes import outcomes, told


def refuse(worker):
    raise PermissionError(f"worker {worker} may not")


def refuse_in_one(worker):
    if worker == 1:
        raise PermissionError(f"worker {worker} may not")


def test_the_first_batch_of_each_worker_tells_and_the_epoch_ends(workers):
    seen = outcomes(DataLoader(range(8), worker_init_fn=refuse, **workers))
    assert [type(each) for each in seen[:2]] == [PermissionError] * 2
    assert [str(each) for each in seen[:2]] == ["worker 0 may not", "worker 1 may not"]
    assert len(seen) == 8
    assert all(isinstance(each, WorkerError) for each in seen[2:])
    assert "could not start" in str(seen[2])


def test_the_traceback_of_the_function_is_shown(workers):
    with pytest.raises(PermissionError) as caught:
        next(iter(DataLoader(range(8), worker_init_fn=refuse, **workers)))
    assert "in refuse" in "".join(traceback.format_exception(caught.value))


def test_the_error_names_the_worker(workers):
    error = outcomes(DataLoader(range(8), worker_init_fn=refuse_in_one, **workers))[1]
    assert "worker process 1 (pid " in told(error) or "worker thread 1 (pid " in told(error)
    assert "as it started" in told(error)


def test_the_other_workers_batches_come(workers):
    seen = outcomes(DataLoader(range(8), worker_init_fn=refuse_in_one, **workers))
    assert seen[::2] == [[0], [2], [4], [6]]
    assert type(seen[1]) is PermissionError


def test_without_workers_it_is_not_called():
    assert outcomes(DataLoader(range(2), worker_init_fn=refuse)) == [[0], [1]]
