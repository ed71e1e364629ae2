"""Accelerate: every row once over all processes, its flags, its gathering, and its checkpoints."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate")

from tests.integrations.running import run
from tests.integrations.scripts.loaders import N


def rows_of(seen, epoch):
    return [row for at, batch in seen for row in batch if at == epoch]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "seed"])
def test_a_loader_that_is_prepared_is_dealt_out_once(tmp_path, kind, processes):
    ranks = run("accelerate_loop.py", kind, 0, "theirs", processes=processes, cwd=tmp_path)
    for epoch in range(2):
        assert sorted(row for rank in ranks for row in rows_of(rank[0], epoch)) == list(range(N))
    for _, gathered, synced, _ in ranks:
        assert sorted(rows_of(gathered, 0)) == list(range(N))
        assert synced[N // 3 // processes - 1]  # the last batch of an epoch applies the gradients


def test_torchs_order_is_kept(tmp_path):
    ours, theirs = (run("accelerate_loop.py", kind, 0, "theirs", cwd=tmp_path) for kind in ("plain", "torch"))
    assert ours == theirs


@pytest.mark.parametrize("kind", ["shard", "stream"])
@pytest.mark.parametrize(("processes", "workers"), [(1, 0), (2, 0), (2, 2)])
def test_a_loader_that_deals_itself_goes_through_our_prepare(tmp_path, kind, processes, workers):
    ranks = run("accelerate_loop.py", kind, workers, "ours", processes=processes, cwd=tmp_path)
    n = N // 3 // processes
    for epoch in range(2):
        assert sorted(row for rank in ranks for row in rows_of(rank[0], epoch)) == list(range(N))
    for seen, gathered, synced, resumed in ranks:
        assert sorted(rows_of(gathered, 0)) == list(range(N))
        assert synced[:n] == [(i + 1) % 3 == 0 or i == n - 1 for i in range(n)]
        assert resumed == [batch for _, batch in seen[2:n]]


@pytest.mark.parametrize("kind", ["shard", "stream", "stream in torch"])
def test_what_would_be_dealt_out_twice_is_refused(tmp_path, kind):
    for refusal in run("accelerate_loop.py", kind, 0, "theirs", processes=2, cwd=tmp_path):
        assert "headrace.integrations.accelerate.prepare" in refusal
