"""JAX: global arrays on one and on two hosts, replicas that hold the same rows, and states in Orbax."""

from __future__ import annotations

import functools
import importlib.util

import pytest

if importlib.util.find_spec("orbax") is None:
    pytest.skip("Orbax is not installed", allow_module_level=True)

from tests.integrations.running import seen as seen_by
from tests.integrations.scripts.loaders import N

PROCESSES = (1, 2)
seen = functools.partial(seen_by, "jax_suite.py")


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("kind", ["map", "stream", "lanes"])
@pytest.mark.parametrize("mesh", ["data", "data and model", "hosts are replicas"])
def test_every_row_once_and_replicas_hold_the_same(kind, mesh, processes):
    hosts = seen(processes)[f"{kind}, {mesh}, 0"]
    assert all(size == 8 for host in hosts for _, size in host)
    if mesh == "hosts are replicas" or processes == 1:
        assert all(host == hosts[0] for host in hosts)
        hosts = hosts[:1]
    assert sorted(row for host in hosts for rows, _ in host for row in rows) == list(range(N))
    assert seen(processes)[f"{kind}, {mesh}, 2"] == seen(processes)[f"{kind}, {mesh}, 0"]


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_state_that_orbax_saves_is_that_of_the_batch_at_hand(kind, processes):
    whole = seen(processes)[f"{kind}, data, 0"]
    assert seen(processes)[f"{kind}, after 1"] == whole
    for one, (expected) in zip(seen(processes)[f"{kind}, after 3"], whole, strict=True):
        assert one[:3] == expected
        assert len(one) == 6  # after the last batch of an epoch comes the next epoch
        assert one[3:] != expected


@pytest.mark.parametrize("processes", PROCESSES)
def test_batches_are_placed_one_step_ahead_and_mistakes_refused(processes):
    assert seen(processes)["ahead"] == [2] * processes
    for refusal in seen(processes)["another rank"]:
        assert "Pass shard=headrace.integrations.jax.data_rank(sharding)" in refusal
    for refusal in seen(processes)["uneven"]:
        assert "Pass drop_last=True" in refusal
