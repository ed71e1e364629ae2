"""Page-locked memory: where there is no accelerator, a warning, and batches as they are."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import DataLoader
from tests.needs import HAS_TORCH, as_lists, needs_torch


def has_accelerator() -> bool:
    if not HAS_TORCH:
        return False
    from headrace.frameworks.torch_tensors import current_accelerator

    return current_accelerator() is not None


@pytest.mark.skipif(has_accelerator(), reason="there is an accelerator")
def test_without_an_accelerator_a_warning_and_plain_batches():
    words = "no accelerator is found" if HAS_TORCH else "torch is not installed"
    loader = DataLoader(range(4), batch_size=2, pin_memory=True)
    for _ in range(2):
        with pytest.warns(UserWarning, match=f"{words}, then pinned memory won't be used"):
            batches = list(loader)
        assert as_lists(batches) == [[0, 1], [2, 3]]
        assert not HAS_TORCH or not any(batch.is_pinned() for batch in batches)


def test_nobody_is_warned_who_did_not_ask():
    assert as_lists(DataLoader(range(2), batch_size=2)) == [[0, 1]]


@needs_torch
def test_with_an_accelerator_every_batch_is_pinned(monkeypatch):
    import torch

    from headrace.frameworks import torch_tensors

    class Batch:
        def __init__(self, samples):
            self.samples = samples

        def pin_memory(self):
            return ("pinned", self.samples)

    monkeypatch.setattr(torch_tensors, "current_accelerator", lambda: "cuda")
    assert list(DataLoader("ab", collate_fn=Batch, pin_memory=True)) == [("pinned", ["a"]), ("pinned", ["b"])]
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: -self)
    (batch,) = DataLoader(range(3), batch_size=3, pin_memory=True)
    assert np.asarray(batch).tolist() == [0, -1, -2]
