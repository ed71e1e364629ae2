"""Shards: how many positions each rank has, and what may be passed for one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order.shard import Shard, resolve_shard

SIZES = {"n": st.integers(0, 60), "world": st.integers(1, 7), "size": st.integers(1, 5)}


@given(**SIZES)
def test_sizes(n, world, size):
    sizes = {
        even: [Shard(rank, world, even).size(n, size) for rank in range(world)]
        for even in ("drop", "allow", "pad", "repeat")
    }
    assert sizes["allow"] == [len(range(rank, n, world)) for rank in range(world)]
    assert set(sizes["drop"]) == {min(sizes["allow"])}
    assert set(sizes["pad"]) == {max(sizes["allow"])}
    assert set(sizes["repeat"]) == {-(-max(sizes["allow"]) // size) * size}


@pytest.mark.parametrize("shard", [(1, 3), [1, 3], (np.int64(1), np.int32(3))])
def test_rank_and_world(shard):
    assert resolve_shard(shard, "pad") == Shard(1, 3, "pad")


def test_none_is_none():
    assert resolve_shard(None, "drop") is None


@pytest.mark.parametrize("shard", [(3, 3), (-1, 3), (0, 0), (1, -1)])
def test_a_rank_lies_in_its_world(shard):
    with pytest.raises(ValueError, match=rf"0 <= rank < world, got \({shard[0]}, {shard[1]}\)"):
        resolve_shard(shard, "drop")


@pytest.mark.parametrize("shard", ["rank", 3, (1,), (1, 2, 3), (1.0, 2), None.__class__])
def test_what_is_no_shard(shard):
    with pytest.raises(ValueError, match="shard must be None, 'auto', "):
        resolve_shard(shard, "drop")


def test_the_environment_is_asked_in_turn(monkeypatch):
    monkeypatch.setattr("headrace.order.shard.loaded", lambda name: None)
    names = ["RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert resolve_shard("auto", "drop") == Shard(0, 1)
    monkeypatch.setenv("RANK", "1")  # alone it says nothing
    assert resolve_shard("auto", "drop") == Shard(0, 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "5")
    assert resolve_shard("auto", "drop") == Shard(2, 5)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert resolve_shard("auto", "drop") == Shard(1, 4)
