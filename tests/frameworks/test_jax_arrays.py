"""Batches as JAX arrays."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import CollateError, CollateTypeError, Collator, DataLoader, TensorDataset, pad_collate
from headrace.frameworks import framework_of
from tests.needs import needs_jax, needs_torch

pytestmark = needs_jax


def test_every_array_of_a_batch_is_jaxs():
    import jax

    dataset = [{"x": np.ones(2, np.float32) * i, "n": i, "name": "a"} for i in range(3)]
    batch = next(iter(DataLoader(dataset, batch_size=3, output="jax")))
    assert isinstance(batch["x"], jax.Array)
    assert isinstance(batch["n"], jax.Array)
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["name"] == ["a"] * 3


def test_the_fast_path_and_padding_give_jax_arrays_too():
    import jax

    (batch,) = DataLoader(TensorDataset(np.arange(4)), batch_size=4, output="jax")
    assert isinstance(batch[0], jax.Array)
    (batch,) = DataLoader([[1], [2, 3]], batch_size=2, collate_fn=pad_collate(), output="jax")
    assert isinstance(batch.values, jax.Array)
    assert batch.values.tolist() == [[1, 0], [2, 3]]


def test_a_batch_does_not_change_when_the_data_does():
    array = np.zeros(256, np.float32)
    (batch,) = DataLoader(TensorDataset(array), batch_size=256, output="jax")
    sample = next(iter(DataLoader([array], batch_size=None, output="jax")))
    array[:] = 9
    assert (batch[0] == 0).all()
    assert (sample == 0).all()


def test_what_a_collate_fn_returns_is_converted():
    import jax

    (batch,) = DataLoader([1, 2], batch_size=2, collate_fn=lambda samples: (np.array(samples), "x"), output="jax")
    assert type(batch) is tuple
    assert isinstance(batch[0], jax.Array)


def test_records_become_dicts_and_text_is_refused():
    collator = Collator(framework_of("jax"))
    records = np.array([(1, 2.0)], dtype=[("n", "i4"), ("x", "f4")])
    assert {name: column.tolist() for name, column in collator(list(records)).items()} == {"n": [1], "x": [2.0]}
    with pytest.raises(CollateTypeError, match="JAX has no arrays of dtype"):
        collator([np.array(["a"])])


@needs_torch
def test_tensors_become_jax_arrays():
    import jax
    import torch

    batch = Collator(framework_of("jax"))([torch.ones(2, requires_grad=True)])
    assert isinstance(batch, jax.Array)
    assert batch.tolist() == [[1, 1]]


@needs_jax
def test_integers_that_would_be_cut_to_32_bits_are_refused():
    with pytest.raises(CollateError, match="jax_enable_x64"):
        next(iter(DataLoader([2**40, 1], batch_size=2, output="jax")))
    assert next(iter(DataLoader([2**30, 1], batch_size=2, output="jax"))).tolist() == [2**30, 1]
