"""Accelerate: every row once over all processes, its flags, its gathering, its checkpoints, and skips that seek."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("accelerate")

from tests.integrations.checks import batches_of, everything, rows_of
from tests.integrations.running import seen as seen_by
from tests.integrations.scripts.loaders import DEALT, N

PROCESSES = (1, 2)
seen = functools.partial(seen_by, "accelerate_suite.py")


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["plain", "in order", "seed"])
def test_a_loader_that_is_prepared_is_dealt_out_once(kind, workers, processes):
    ranks = seen(processes)[f"{kind}, {workers}, theirs"]
    for epoch in range(2):
        assert sorted(rows_of(ranks, epoch)) == list(range(N))
    for _, gathered, synced, _ in ranks:
        assert sorted(row for epoch, batch in gathered for row in batch if epoch == 0) == list(range(N))
        assert synced[N // 3 // processes - 1]  # the last batch of an epoch applies the gradients


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_flags_and_weights_are_those_with_torchs_loader(processes, workers):
    for ours, theirs in (("plain", "torch"), ("in order", "torch, in order")):
        assert seen(processes)[f"{ours}, {workers}, theirs"] == seen(processes)[f"{theirs}, 0, theirs"]


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize("processes", PROCESSES)
def test_a_loader_that_deals_itself_goes_through_our_prepare(kind, processes):
    ranks = seen(processes)[f"{kind}, 0, ours"]
    n = len(batches_of(ranks[0], 0))
    for epoch in range(2):
        assert sorted(rows_of(ranks, epoch)) == everything(kind)
    for _, gathered, synced, _ in ranks:
        assert sorted(row for epoch, batch in gathered for row in batch if epoch == 0) == everything(kind)
        assert synced[:n] == [(i + 1) % 3 == 0 or i == n - 1 for i in range(n)]
    assert seen(processes)[f"{kind}, 2, ours"] == ranks


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("place", ["middle", "last", "epoch"])
def test_a_saved_state_resumes_at_the_next_batch(kind, processes, place):
    for one, resumed in zip(seen(processes)[f"{kind}, 0, ours"], seen(processes)[f"{kind}, from {place}"], strict=True):
        first, second = batches_of(one, 0), batches_of(one, 1)
        assert resumed[0] == (first[2:] if place == "middle" else second)
        if place == "middle":
            assert resumed[1] == second
    if (kind, place) == ("shard", "middle"):
        assert seen(processes)["shard, from middle, 2"] == seen(processes)["shard, from middle"]


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize("processes", PROCESSES)
def test_skipped_batches_are_those_that_were_seen(kind, processes):
    for one, (rest, second) in zip(
        seen(processes)[f"{kind}, 0, ours"], seen(processes)[f"{kind}, skipped"], strict=True
    ):
        assert rest == batches_of(one, 0)[2:]
        assert second == batches_of(one, 1)


@pytest.mark.parametrize("processes", PROCESSES)
def test_a_loader_that_accelerate_rebuilds_skips_in_the_same_order(processes):
    assert seen(processes)["plain, skipped, theirs"] == seen(processes)["torch, skipped, theirs"]
    whole, rest = seen(processes)["seed, 0, theirs"], seen(processes)["seed, skipped, theirs"]
    assert rest == [batches_of(one, 0)[2:] for one in whole]


@pytest.mark.parametrize("processes", PROCESSES)
def test_batches_are_placed_and_flags_taken_back(processes):
    assert seen(processes)["placed"] == [[True, True]] * processes
    assert seen(processes)["flags are gone"] == [True] * processes


@pytest.mark.parametrize("kind", ["shard", "stream", "mix", "packed", "stream in torch"])
def test_what_would_be_dealt_out_twice_is_refused(kind):
    for refusal in seen(2)[f"{kind}, refused"]:
        assert "headrace.integrations.accelerate.prepare" in refusal
