"""Ray Train: every row once over all workers, and a worker that failed is resumed at exactly the next batch."""

from __future__ import annotations

import functools
import importlib.util

import pytest

if importlib.util.find_spec("ray") is None or importlib.util.find_spec("pandas") is None:
    pytest.skip("Ray Train is not installed", allow_module_level=True)

from tests.integrations.checks import everything
from tests.integrations.running import seen as seen_by
from tests.integrations.scripts.loaders import DEALT, N

WORKERS = (1, 2)
seen = functools.partial(seen_by, "ray_train_suite.py", 1)


def of(workers, name):
    [found] = seen()[f"{workers}"]
    return [one[name] for one in found]


def rows_in(batches):
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize("workers", WORKERS)
def test_every_row_once_over_all_workers(kind, workers):
    whole = of(workers, f"{kind}, 0")
    for epoch in range(2):
        assert sorted(row for one in whole for row in rows_in(one[epoch])) == everything(kind)
    assert of(workers, f"{kind}, 2") == whole


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", ["shard", "in order", "plain"])
def test_what_ray_prepares_is_dealt_out_once_and_in_order_stays_in_order(kind, workers):
    found = of(workers, f"{kind}, theirs")
    assert sorted(row for one in found for row in rows_in(one)) == list(range(N))
    if kind == "in order":
        assert found == of(workers, "torch, in order, theirs")
    if kind == "shard":
        assert found == [one[0] for one in of(workers, "shard, 0")]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_worker_that_failed_is_resumed_at_the_next_batch(workers):
    assert of(workers, "restored 1") == [False] * workers
    assert of(workers, "restored 2") == [True] * workers
    runs = [rows_in(one[:3]) for one in of(workers, "run 1")] + [rows_in(one) for one in of(workers, "run 2")]
    assert sorted(row for rows in runs for row in rows) == everything("mix")


def test_workers_are_not_forked_in_a_process_of_ray():
    assert "ForkServer" in of(1, "starts")[0]


def test_what_the_documentation_shows_runs():
    assert seen()["documented"] == [8]
