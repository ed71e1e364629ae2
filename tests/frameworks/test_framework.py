"""How a framework and a source of randomness are chosen, and the errors where a library is missing."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import DataLoader, MissingExtraError
from headrace.frameworks import framework_of, random_source, resolve_output
from headrace.frameworks.framework import gather_of, tensor_type
from headrace.frameworks.numpy_arrays import NumpyRandom
from tests.needs import HAS_TORCH, needs_torch, without_jax, without_torch


def test_auto_is_torch_if_installed_and_numpy_otherwise():
    assert resolve_output("auto") == framework_of("auto").name == ("torch" if HAS_TORCH else "numpy")
    assert framework_of("numpy").name == "numpy"


def test_an_unknown_output_is_refused_when_the_loader_is_made():
    with pytest.raises(ValueError, match="output must be one of 'auto', 'torch', 'numpy', 'jax', got 'tensorflow'"):
        DataLoader([1], output="tensorflow")


@without_torch
@pytest.mark.parametrize("options", [{}, {"shuffle": True}], ids=["in order", "shuffled"])
def test_without_torch_asking_for_tensors_names_the_extra(options):
    with pytest.raises(MissingExtraError, match=r"needs torch.*Run: pip install 'headrace\[torch\]'"):
        DataLoader([1, 2], output="torch", **options)


@without_jax
def test_without_jax_asking_for_its_arrays_names_the_extra():
    with pytest.raises(MissingExtraError, match=r"output='jax' needs jax.*Run: pip install 'headrace\[jax\]'"):
        DataLoader([1, 2], output="jax")


@without_torch
def test_without_torch_nothing_is_a_tensor():
    assert tensor_type() is None


def test_numpy_generators_are_drawn_from_by_numpy():
    for generator in (np.random.default_rng(0), np.random.RandomState(0)):
        assert type(random_source(generator)) is NumpyRandom
        assert type(random_source(generator, "torch")) is NumpyRandom
    assert type(random_source(None, "numpy")) is NumpyRandom


def test_an_unknown_library_is_refused():
    with pytest.raises(ValueError, match="library must be 'auto', 'torch' or 'numpy', got 'jax'"):
        random_source(None, "jax")


@needs_torch
def test_torch_generators_are_drawn_from_by_torch():
    import torch

    assert type(random_source(torch.Generator(), "numpy")).__name__ == "TorchRandom"
    assert type(random_source(None)).__name__ == "TorchRandom"


def test_only_arrays_and_tensors_are_gathered():
    assert gather_of(np.arange(3), framework_of("auto"))(np.array([2, 0])).tolist() == [2, 0]
    assert gather_of([1, 2, 3], framework_of("auto")) is None


@pytest.mark.parametrize("name", ["numpy", "auto"])
def test_batches_are_born_in_the_memory_that_the_framework_is_given(name):
    born = []

    def allocate(shape, dtype):
        born.append(np.zeros(shape, dtype))
        return born[-1]

    framework = framework_of(name, allocate)
    stacked = framework.stack([np.arange(3), np.arange(3)])
    padded, lengths = framework.pad([np.arange(3), np.arange(2)], 4, 0, True)
    assert len(born) == 2
    assert lengths == [3, 2]
    assert np.shares_memory(np.asarray(stacked), born[0])
    assert np.shares_memory(np.asarray(padded), born[1])
