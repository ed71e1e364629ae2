"""Draws from torch's generators: the ones that torch's own code would make."""

from __future__ import annotations

import numpy as np
import pytest

from tests.needs import needs_torch

pytestmark = needs_torch


@pytest.fixture
def source():
    import torch

    from headrace.frameworks.torch_sampling import TorchRandom

    return TorchRandom(torch.Generator().manual_seed(5))


def test_draws_are_torchs_own(source):
    import torch

    generator = torch.Generator().manual_seed(5)
    assert source.permutation(9).tolist() == torch.randperm(9, generator=generator).tolist()
    assert source.integers(9, 4).tolist() == torch.randint(9, (4,), generator=generator).tolist()
    weights = torch.tensor([1.0, 2.0, 0.0])
    expected = torch.multinomial(weights, 4, True, generator=generator)
    assert source.weighted(weights, 4, True).tolist() == expected.tolist()


def test_indices_are_int64_arrays(source):
    for indices in (source.permutation(3), source.integers(3, 2), source.weighted(source.as_weights([1.0]), 1, True)):
        assert type(indices) is np.ndarray
        assert indices.dtype == np.int64


def test_a_seeded_source_is_repeatable():
    from headrace.frameworks.torch_sampling import seeded

    assert seeded(3).permutation(20).tolist() == seeded(3).permutation(20).tolist()
    assert seeded(3).permutation(20).tolist() != seeded(4).permutation(20).tolist()
