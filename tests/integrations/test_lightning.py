"""Lightning: every row once over all ranks, torch's order where torch defines it, and resumes at any batch."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning")

from tests.integrations.running import run_lightning
from tests.integrations.scripts.loaders import N


def fit(cwd, kind, workers=0, epochs=2, action="none", place=0, devices=1):
    return run_lightning(kind, workers, epochs, action, place, cwd / "saved.ckpt", processes=devices, cwd=cwd)


def rows_of(seen, epoch):
    return [row for batches, _ in seen for at, batch in batches if at == epoch for row in batch]


@pytest.mark.parametrize("devices", [1, 2])
def test_the_same_batches_and_weights_as_with_torchs_loader(tmp_path, devices):
    expected = fit(tmp_path, "torch", devices=devices)
    assert fit(tmp_path, "plain", devices=devices) == expected
    assert fit(tmp_path, "plain", workers=2, devices=devices) == expected


@pytest.mark.parametrize("kind", ["seed", "shard", "stream", "lanes"])
@pytest.mark.parametrize("devices", [1, 2])
def test_every_row_once_over_all_ranks_and_workers_change_nothing(tmp_path, kind, devices):
    seen = fit(tmp_path, kind, devices=devices)
    for epoch in range(2):
        assert sorted(rows_of(seen, epoch)) == list(range(N))
    if kind != "lanes":
        assert rows_of(seen, 0) != rows_of(seen, 1)
    assert fit(tmp_path, kind, workers=2, devices=devices) == seen


def test_our_sampler_in_torchs_loader_is_not_dealt_out_twice(tmp_path):
    seen = fit(tmp_path, "torch with our sampler", devices=2)
    assert sorted(rows_of(seen, 0)) == list(range(N))


@pytest.mark.parametrize("kind", ["plain", "seed", "shard", "stream"])
@pytest.mark.parametrize(("devices", "place"), [(1, 3), (1, 8), (1, "epoch"), (2, 2), (2, 4), (2, "epoch")])
def test_a_resumed_training_goes_on_where_it_was(tmp_path, kind, devices, place):
    if (kind, devices) == ("plain", 2):
        pytest.skip("Lightning's own sampler has no state: it is torch's")
    whole = fit(tmp_path, kind, action="save", place=place, devices=devices)
    resumed = fit(tmp_path, kind, action="resume", devices=devices)
    done = N // 3 // devices if place == "epoch" else place
    if kind == "plain":  # without a seed, the second epoch's shuffle is drawn anew
        epoch_end = N // 3
        assert [seen[0][: epoch_end - done] for seen in resumed] == [seen[0][done:epoch_end] for seen in whole]
        return
    assert [seen[0] for seen in resumed] == [seen[0][done:] for seen in whole]


@pytest.mark.parametrize("later", [1, 3])
def test_another_number_of_ranks_gets_the_rest_once(tmp_path, later):
    whole = fit(tmp_path, "mix", epochs=1, action="save", place=2, devices=2)
    before = [row for batches, _ in whole for _, batch in batches[:2] for row in batch]
    resumed = fit(tmp_path, "mix", epochs=1, action="resume", devices=later)
    after = [row for batches, _ in resumed for _, batch in batches for row in batch]
    everything = [*range(N), *(-1 - i for i in range(N))]
    got = sorted(before + after)
    assert len(set(got)) == len(got)
    assert set(got) <= set(everything)
    assert len(everything) - len(got) < later * 3  # "drop" makes ranks even


def test_overfit_batches_rebuilds_the_loader(tmp_path):
    [[batches, _]] = fit(tmp_path, "seed", epochs=2, action="overfit", place=2)
    assert len(batches) == 4
