"""A dataset that closes file descriptors which are not its own."""

from __future__ import annotations

import os

import pytest

from headrace import DataLoader, WorkerDiedError
from tests.failures.outcomes import Each, outcomes, split, until


def close_all(index):
    if index == 3:
        os.closerange(3, 1024)
    return index


@pytest.mark.timeout(30)
def test_the_loop_is_told_what_has_probably_happened():
    iterator = iter(DataLoader(Each(close_all), num_workers=2))
    seen, error = until(WorkerDiedError, iterator)
    assert seen == [[0], [1], [2]][: len(seen)]
    assert "lost its connection" in str(error)
    assert "close file descriptors" in str(error)


@pytest.mark.filterwarnings("ignore:DataLoader worker .* exited unexpectedly")
def test_with_restarts_only_that_batch_is_missing():
    batches, errors = split(outcomes(DataLoader(Each(close_all), num_workers=2, on_worker_death="restart")))
    assert batches == [[0], [1], [2], [4], [5], [6], [7]]
    assert [type(error) for error in errors] == [WorkerDiedError]
    assert "batch 3" in str(errors[0])
