"""Batches as tensors, and page-locked memory for batches of every kind."""

from __future__ import annotations

import warnings
from collections import OrderedDict, UserList, namedtuple

import numpy as np
import pytest

from headrace import CollateError, CollateTypeError
from tests.needs import needs_torch

pytestmark = needs_torch
Pair = namedtuple("Pair", "x y")


class Pinnable:
    """Anything with a `pin_memory` of its own."""

    pinned = False

    def pin_memory(self):
        copy = type(self)()
        copy.pinned = True
        return copy


class PinnableDict(dict):
    def pin_memory(self):
        return "asked the mapping itself"


@pytest.fixture
def tensors():
    from headrace.frameworks.torch_tensors import TorchTensors

    return TorchTensors()


def test_arrays_become_tensors_of_the_same_type(tensors):
    import torch

    assert tensors.stack([np.zeros(2, np.float32)] * 3).dtype == torch.float32
    assert tensors.stack([np.zeros((), np.int16)] * 3).shape == (3,)
    assert tensors.join_numbers([True, False], None).dtype == torch.bool


def test_channels_last_samples_keep_their_layout(tensors):
    import torch

    sample = np.zeros((3, 4, 5, 2)).transpose(0, 3, 1, 2)  # (3, 2, 4, 5), channels last
    expected = torch.stack([torch.as_tensor(sample)] * 2)
    assert tensors.stack([sample, sample]).stride() == expected.stride()


def test_numbers_of_mixed_types_follow_torch(tensors):
    import torch

    assert tensors.join_numbers([1, 2.5], None).dtype == torch.as_tensor([1, 2.5]).dtype
    with pytest.raises((OverflowError, RuntimeError, ValueError)):
        tensors.join_numbers([2**70], None)


def test_what_torch_has_no_tensors_for(tensors):
    with pytest.raises(CollateTypeError, match="strings or Python objects are no tensors"):
        tensors.stack([np.array(["a"])])


def test_tensors_of_unequal_shapes(tensors):
    import torch

    with pytest.raises(CollateError, match=r"\(2,\) at entry 0 and \(3,\) at entry 1"):
        tensors.stack([torch.zeros(2), torch.zeros(3, requires_grad=True)])


def test_convert_shares_memory_where_it_can(tensors):
    array = np.zeros(3)
    tensor = tensors.convert(array)
    array[0] = 1
    assert tensor.tolist() == [1, 0, 0]
    assert tensors.convert(tensor) is tensor


def test_pin_asks_every_leaf_in_containers_of_every_kind():
    from headrace.frameworks.torch_tensors import pin

    leaf = Pinnable()
    batch = {
        "tuple": (leaf, 1),
        "list": [leaf, "text", b"bytes"],
        "named": Pair(leaf, None),
        "ordered": OrderedDict(a=leaf),
        "user": UserList([leaf]),
        "nested": [({"deep": leaf},)],
    }
    pinned = pin(batch)
    assert type(pinned["tuple"]) is tuple
    assert type(pinned["named"]) is Pair
    assert type(pinned["ordered"]) is OrderedDict
    assert type(pinned["user"]) is UserList
    found = [
        pinned["tuple"][0],
        pinned["list"][0],
        pinned["named"].x,
        pinned["ordered"]["a"],
        pinned["user"][0],
        pinned["nested"][0][0]["deep"],
    ]
    assert all(value.pinned for value in found)
    assert not leaf.pinned
    assert (pinned["tuple"][1], pinned["list"][1:], pinned["named"].y) == (1, ["text", b"bytes"], None)


def test_pin_asks_a_batch_that_knows_how():
    from headrace.frameworks.torch_tensors import pin

    assert pin(Pinnable()).pinned
    assert pin(PinnableDict(a=1)) == "asked the mapping itself"
    assert pin("text") == "text"


def test_pin_pins_tensors(monkeypatch):
    import torch

    from headrace.frameworks.torch_tensors import pin

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: ("pinned", self.tolist()))
    assert pin([torch.arange(2), 5]) == [("pinned", [0, 1]), 5]


@pytest.mark.parametrize(
    ("accelerator", "expected", "words"),
    [("cuda", True, None), ("mps", False, "not supported on MPS"), (None, False, "no accelerator is found")],
)
def test_memory_is_pinned_for_accelerators_that_can(monkeypatch, accelerator, expected, words):
    from headrace.frameworks import torch_tensors

    monkeypatch.setattr(torch_tensors, "current_accelerator", lambda: accelerator)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch_tensors.can_pin("") is expected
    assert [words in str(warning.message) for warning in caught] == ([True] if words else [])


def test_pin_memory_device_is_told_to_have_no_effect(monkeypatch):
    from headrace.frameworks import torch_tensors

    monkeypatch.setattr(torch_tensors, "current_accelerator", lambda: "cuda")
    with pytest.warns(UserWarning, match="pin_memory_device='cuda:1' is ignored"):
        assert torch_tensors.can_pin("cuda:1")
