"""Rows of arrays as samples."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import DataLoader, TensorDataset
from tests.needs import needs_torch


def test_a_sample_is_a_tuple_of_rows():
    dataset = TensorDataset(np.arange(6).reshape(3, 2), np.array([7, 8, 9]))
    row, label = dataset[-1]
    assert (row.tolist(), label) == ([4, 5], 9)
    assert len(dataset) == 3
    with pytest.raises(IndexError):
        dataset[3]


def test_first_dimensions_must_agree():
    with pytest.raises(AssertionError, match=r"Size mismatch between tensors: their first dimensions are \[3, 2\]"):
        TensorDataset(np.zeros(3), np.zeros(2))


@needs_torch
def test_arrays_and_tensors_may_be_mixed():
    import torch

    dataset = TensorDataset(torch.arange(4.0), np.arange(4, dtype=np.int32))
    for batch in (next(iter(DataLoader(dataset, batch_size=4))), next(iter(DataLoader(dataset)))):
        assert [column.dtype for column in batch] == [torch.float32, torch.int32]
