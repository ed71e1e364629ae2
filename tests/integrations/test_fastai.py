"""fastai: the rows and weights that it has with torch's loader, and every row once."""

from __future__ import annotations

import functools
import importlib.util

import pytest

if importlib.util.find_spec("fastai") is None:
    pytest.skip("fastai is not installed", allow_module_level=True)

from tests.integrations.running import seen as seen_by
from tests.integrations.scripts.loaders import N

seen = functools.partial(seen_by, "fastai_suite.py", 1)
N_TRAIN = N // 3  # batches of an epoch; as many are validated


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_and_weights_are_those_with_torchs_loader(workers):
    assert seen()[f"plain, {workers}"] == seen()["torch, 0"]


@pytest.mark.parametrize("kind", ["seed", "stream"])
def test_every_row_once_and_workers_change_nothing(kind):
    [[batches, _]] = seen()[f"{kind}, 0"]
    first, second = batches[:N_TRAIN], batches[2 * N_TRAIN : 3 * N_TRAIN]
    assert sorted(row for batch in first for row in batch) == list(range(N))
    assert sorted(row for batch in second for row in batch) == list(range(N))
    assert first != second
    assert seen()[f"{kind}, 2"] == seen()[f"{kind}, 0"]
