"""Lightning: every row once over all ranks, torch's order where torch defines it, and resumes at any batch."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("lightning")

from tests.integrations.checks import batches_of, everything, rows_of
from tests.integrations.running import run
from tests.integrations.scripts.loaders import DEALT, SIZE, N

RANKS = (1, 2)


@functools.cache
def seen(ranks):
    with tempfile.TemporaryDirectory() as folder:
        return run("lightning_suite.py", processes=ranks, folder=Path(folder), ranks_known=False)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_batches_and_weights_as_with_torchs_loader(ranks, workers):
    assert seen(ranks)[f"plain, {workers}"] == seen(ranks)["torch, 0"]


@pytest.mark.parametrize("kind", ["seed", *DEALT, "unsized"])
@pytest.mark.parametrize("ranks", RANKS)
def test_every_row_once_over_all_ranks_and_workers_change_nothing(kind, ranks):
    whole = seen(ranks)[f"{kind}, 0"]
    for epoch in range(2):
        assert sorted(rows_of(whole, epoch)) == everything(kind)
    if kind != "lanes":
        assert rows_of(whole, 0) != rows_of(whole, 1)
    assert seen(ranks)[f"{kind}, 2"] == whole


def test_our_sampler_in_torchs_loader_is_not_dealt_out_twice():
    assert sorted(rows_of(seen(2)["torch with our sampler"], 0)) == list(range(N))


@pytest.mark.parametrize("kind", ["plain", "seed", *DEALT, "unsized"])
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("place", ["middle", "last", "epoch"])
def test_a_resumed_training_goes_on_where_it_was(kind, ranks, place):
    if (kind, ranks) == ("plain", 2):
        pytest.skip("Lightning's own sampler has no state: it is torch's")
    whole, resumed = seen(ranks)[f"{kind}, 0"], seen(ranks)[f"{kind}, from {place}"]
    n = len(batches_of(whole[0], 0))
    done = 2 if place == "middle" else n
    if kind == "plain":  # without a seed, the second epoch's shuffle is drawn anew
        assert [one[0][: n - done] for one in resumed] == [one[0][done:n] for one in whole]
        return
    assert [one[0] for one in resumed] == [one[0][done:] for one in whole]
    if place == "middle" and kind in ("seed", "stream"):
        assert [one[0] for one in seen(ranks)[f"{kind}, from {place}, 2"]] == [one[0][done:] for one in whole]


@pytest.mark.parametrize("kind", ["shard", "stream", "mix"])
@pytest.mark.parametrize("ranks", RANKS)
def test_the_callback_proves_epochs_also_interrupted_ones(kind, ranks):
    for proven in seen(ranks)[f"{kind}, audited"]:
        assert proven == [[[0, 1]], [[0, 1]]]


@pytest.mark.parametrize("ranks", RANKS)
def test_fabric_takes_the_loader(ranks):
    assert seen(ranks)["plain, fabric"] == seen(ranks)["torch, fabric"]
    for kind in ("seed", "shard"):
        batches = seen(ranks)[f"{kind}, fabric"]
        assert sorted(row for one in batches for epoch, batch in one for row in batch if epoch == 0) == list(range(N))


@pytest.mark.parametrize("ranks", RANKS)
def test_overfit_batches_rebuilds_the_loader(ranks):
    for batches, _ in seen(ranks)["seed, overfit"]:
        assert len(batches) == 4
        assert [batch for _, batch in batches[:2]] == [batch for _, batch in batches[2:]]
        assert all(len(batch) == SIZE for _, batch in batches)
