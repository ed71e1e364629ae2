"""Weights that give every class the same chance."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import class_weights
from tests.needs import needs_torch


@pytest.mark.parametrize(
    "labels",
    [[0, 0, 0, 0, 1], ("a", "a", "a", "a", "b"), np.array([7, 7, 7, 7, -1]), (x > 3 for x in range(5))],
    ids=["list", "strings", "array", "generator"],
)
def test_each_sample_weighs_one_over_the_size_of_its_class(labels):
    weights = class_weights(labels)
    assert weights.dtype == np.float64
    assert weights.tolist() == [0.25, 0.25, 0.25, 0.25, 1.0]


@needs_torch
def test_labels_may_be_a_tensor():
    import torch

    assert class_weights(torch.tensor([1, 0, 1])).tolist() == [0.5, 1.0, 0.5]


def test_labels_must_be_one_per_sample():
    with pytest.raises(ValueError, match=r"one label per sample, got an array of shape \(2, 2\)"):
        class_weights([[0, 1], [1, 0]])
