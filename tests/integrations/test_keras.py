"""Keras 3 on torch and on JAX: loaders are taken, no epoch is used up by building a model, and resumes are exact."""

from __future__ import annotations

import functools
import importlib.util

import pytest

if importlib.util.find_spec("keras") is None:
    pytest.skip("Keras is not installed", allow_module_level=True)

from tests.integrations.running import seen as seen_by
from tests.integrations.scripts.loaders import N, make, rows

BACKENDS = ("torch", "jax")
seen = functools.partial(seen_by, "keras_suite.py", 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_and_weights_are_those_with_torchs_loader(backend):
    for workers in (0, 2):
        assert seen(backend)[f"plain, {workers}"] == seen(backend)["torch, 0"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["seed", "shard", "stream", "lanes"])
def test_the_adapter_gives_the_epochs_of_the_loader(backend, kind):
    loader = make(kind)
    expected = [rows(batch) for _ in range(2) for batch in loader]
    for workers in (0, 2):
        [[batches, _]] = seen(backend)[f"{kind}, {workers}"]
        assert batches == expected
    assert sorted(row for batch in batches[: len(batches) // 2] for row in batch) == list(range(N))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["seed", "shard", "stream"])
@pytest.mark.parametrize("after", [2, 8])
def test_a_resumed_training_goes_on_where_it_was(backend, kind, after):
    [[whole, _]] = seen(backend)[f"{kind}, 0"]
    [[epoch, rest]] = seen(backend)[f"{kind}, after {after}"]
    assert rest == whole[after:]
    assert epoch in ((0,) if after == 2 else (0, 1))
