"""The size of a batch, whatever it is made of."""

from __future__ import annotations

import numpy as np

from headrace.insight.weight import bytes_of
from tests.needs import needs_torch


def test_arrays_strings_and_bytes_count_wherever_they_are():
    batch = {"x": np.zeros((2, 3), np.float32), "y": [np.zeros(2), ("abc", b"de")], "z": 7, "n": None}
    assert bytes_of(batch) == 24 + 16 + 3 + 2


def test_long_lists_are_reckoned_from_some_of_their_elements():
    assert bytes_of(["x" * 10] * 1000) == 10_000
    assert 90_000 < bytes_of(["x" * (i % 200) for i in range(1000)]) < 110_000


def test_what_refuses_to_be_looked_at_counts_nothing():
    class Odd(dict):
        def values(self):
            raise RuntimeError

    assert bytes_of(Odd()) == 0
    deep: list[object] = []
    deep.append(deep)
    assert bytes_of(deep) == 0


@needs_torch
def test_tensors_count():
    import torch

    assert bytes_of([torch.zeros(4), torch.zeros(2, dtype=torch.uint8)]) == 18
