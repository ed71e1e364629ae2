"""Batches that become the framework's own only in the loader: the same as if they had been made there."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace import DataLoader
from headrace.batch.collate import Collator, default_collate
from headrace.frameworks.deferred import DeferredTensor, deferred_framework
from headrace.frameworks.framework import empty_aligned, framework_of
from tests.needs import HAS_TORCH, needs_jax, needs_torch

if HAS_TORCH:
    import torch


def delivered(value):
    """As it is after the journey to the loader."""
    return pickle.loads(pickle.dumps(value, 5))


def collated(samples, output):
    return delivered(Collator(deferred_framework(output, empty_aligned))(samples))


def same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        return all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if HAS_TORCH and isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        return ours.contiguous().numpy(force=True).tobytes() == theirs.contiguous().numpy(force=True).tobytes()
    return ours == theirs


SAMPLES = st.one_of(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=4),
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.lists(st.text(max_size=5), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), min_size=1, max_size=4),
    st.lists(st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text(max_size=3)}), min_size=1, max_size=4),
    st.tuples(
        st.sampled_from(["?", "u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        st.integers(1, 4),
        st.sampled_from(["C", "F"]),
    ).map(lambda drawn: [np.ones(drawn[1], drawn[0], order=drawn[3]) * i for i in range(drawn[2])]),
)


@needs_torch
@settings(deadline=None, max_examples=300)
@given(SAMPLES)
def test_tensors_are_those_that_torch_makes(samples):
    samples = [sample.astype(samples[0].dtype) if isinstance(sample, np.ndarray) else sample for sample in samples]
    assert same(collated(samples, "torch"), torch.utils.data.default_collate(samples))


@needs_torch
@pytest.mark.parametrize(
    "samples",
    [
        lambda: [torch.ones(3), torch.zeros(3)],
        lambda: [torch.ones(2, 3).t(), torch.zeros(2, 3).t()],
        lambda: [torch.tensor(1.0), torch.tensor(2.0)],
        lambda: [torch.ones(0)] * 3,
        lambda: [{"x": torch.ones(2), "y": np.float32(1)}] * 2,
        lambda: [np.int16(3), np.int16(4)],
        lambda: [np.array(3, np.float32)] * 2,
        lambda: [np.zeros((2, 2, 2, 2, 2))] * 2,
        lambda: [np.asfortranarray(np.ones((2, 3, 4, 5)))] * 2,
    ],
)
def test_tensors_of_every_source(samples):
    assert same(collated(samples(), "torch"), torch.utils.data.default_collate(samples()))


@needs_torch
@pytest.mark.parametrize("size", [4, 200])
def test_batches_are_contiguous_as_those_of_torchs_workers(size):
    samples = [torch.rand(2, 3, size, size).to(memory_format=torch.channels_last)] * 2
    assert same(collated(samples, "torch"), torch.stack(samples).contiguous())


@needs_torch
def test_a_tensor_that_was_deferred_lies_over_the_memory_of_its_array():
    array = np.arange(6.0).reshape(2, 3)
    buffers = []
    stream = pickle.dumps(DeferredTensor(array), 5, buffer_callback=buffers.append)
    tensor = pickle.loads(stream, buffers=buffers)
    array[0, 0] = 9
    assert tensor[0, 0] == 9


@needs_torch
def test_a_deferred_tensor_of_any_layout():
    for array in (np.arange(6.0).reshape(2, 3).T, np.arange(8)[::2], np.ones((0, 2)), np.array(5)):
        assert delivered(DeferredTensor(array)).tolist() == array.tolist()


@needs_jax
def test_jax_arrays():
    import jax

    batch = collated([(np.ones(2, np.float32), 1), (np.zeros(2, np.float32), 2)], "jax")
    assert all(isinstance(part, jax.Array) for part in batch)
    assert batch[0].tolist() == [[1, 1], [0, 0]]


def test_numpy_arrays_are_what_they_are():
    framework = deferred_framework("numpy", empty_aligned)
    assert framework.name == framework_of("numpy").name
    assert collated([np.ones(2), np.zeros(2)], "numpy").tolist() == [[1, 1], [0, 0]]


@needs_torch
def test_memory_is_taken_from_where_it_is_said():
    taken = []

    def allocate(shape, dtype):
        taken.append(shape)
        return np.empty(shape, dtype)

    collator = Collator(deferred_framework("torch", allocate))
    collator([np.ones((3, 4), np.float32)] * 2)
    collator([torch.ones(3, 4)] * 2)  # few: torch itself is faster
    collator([torch.ones(300, 400)] * 2)
    assert taken == [(2, 3, 4), (2, 300, 400)]


@needs_torch
def test_errors_are_those_of_the_framework_itself():
    for samples in ([np.ones(2), np.ones(3)], [np.array(["a"])] * 2, [object()] * 2):
        with pytest.raises(Exception) as ours:  # noqa: PT011 (whatever the framework raises)
            collated(samples, "torch")
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            default_collate(samples)
        assert type(ours.value) is type(theirs.value)
        assert str(ours.value) == str(theirs.value)


@needs_torch
def test_a_worker_that_makes_tensors_of_plain_data_needs_no_torch():
    script = """
import sys, numpy as np, pickle
from headrace.batch.collate import Collator
from headrace.frameworks.deferred import deferred_framework
from headrace.frameworks.framework import empty_aligned
collator = Collator(deferred_framework("torch", empty_aligned))
for samples in ([1, 2], [1.5], [True], ["a"], [np.ones(3)] * 2, [{"x": np.float32(1), "y": (1, 2.0)}] * 2):
    pickle.dumps(collator(samples), 5)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@needs_torch
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_loaders_with_and_without_workers_agree(engine):
    data = [(np.full(3, i, np.float32), i, f"{i}", {"t": torch.full((2,), i)}) for i in range(10)]
    inline = list(DataLoader(data, batch_size=4))
    worked = list(DataLoader(data, batch_size=4, num_workers=2, engine=engine))
    assert same(worked, inline)
