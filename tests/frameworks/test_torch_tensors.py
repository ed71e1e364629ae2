"""Batches as tensors, page-locked memory for batches of every kind, and tensors sent as arrays."""

from __future__ import annotations

import pickle
import warnings
from collections import OrderedDict, UserList, namedtuple

import numpy as np
import pytest

from headrace import CollateError, CollateTypeError
from tests.needs import HAS_TORCH, needs_torch

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


if HAS_TORCH:
    import torch

    from headrace.frameworks.torch_tensors import from_numpy, rebuild_tensor, reduce_tensor


def back(tensor):
    function, arguments, *rest = reduce_tensor(tensor)
    assert not rest or rest == [None] * len(rest)
    return function(*arguments)


def test_a_plain_tensor_is_the_array_over_its_memory():
    tensor = torch.arange(6.0).reshape(2, 3)
    function, (array,) = reduce_tensor(tensor)
    assert function is from_numpy
    assert array.ctypes.data == tensor.data_ptr()


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e5m2", "complex32"])
def test_types_that_numpy_has_not_travel_as_bits(kind):
    tensor = torch.arange(8, dtype=torch.uint8).view(getattr(torch, kind))
    again = back(tensor)
    assert again.dtype == tensor.dtype
    assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))


def test_strides_are_kept_and_gaps_are_sent_only_if_they_are_small():
    tensor = torch.arange(100.0).reshape(10, 10)
    for view, sent in ((tensor.t(), 100), (tensor[:, ::2], 99), (tensor[::2], 90), (tensor[:, 3], 10)):
        function, arguments = reduce_tensor(view)
        assert function is rebuild_tensor
        assert arguments[0].size == sent
        again = function(*arguments)
        assert torch.equal(again, view)
        assert again.stride() == (view.stride() if sent > 10 else (1,))


def test_an_expanded_tensor_is_sent_once():
    view = torch.arange(3.0).expand(1000, 3)
    _, arguments = reduce_tensor(view)
    assert arguments[0].size == 3
    assert torch.equal(back(view), view)


def test_the_middle_of_a_storage_is_sent_alone():
    view = torch.arange(1000.0)[500:510]
    _, (array,) = reduce_tensor(view)
    assert array.tolist() == list(range(500, 510))


def test_gradients_are_wanted_as_before():
    leaf = torch.ones(3, requires_grad=True)
    again = back(leaf)
    assert again.requires_grad
    assert again.is_leaf
    grown = leaf * 2
    assert reduce_tensor(grown)[0] not in (from_numpy, rebuild_tensor)


@pytest.mark.filterwarnings("ignore:Sparse .* support is in beta state")
def test_what_is_not_plain_memory_goes_torchs_own_way():
    eye = torch.eye(3)
    complex_numbers = torch.ones(3) * 1j
    for tensor in (eye.to_sparse(), eye.to_sparse_csr(), eye.to("meta"), complex_numbers.conj()):
        assert reduce_tensor(tensor)[0] not in (from_numpy, rebuild_tensor)


def test_memory_that_must_not_be_written_to_is_copied():
    array = np.arange(3)
    array.flags.writeable = False
    tensor = from_numpy(array)
    tensor += 1
    assert array.tolist() == [0, 1, 2]
    assert tensor.tolist() == [1, 2, 3]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "bool"])
def test_shapes_without_extent(shape, kind):
    tensor = torch.ones(shape, dtype=getattr(torch, kind))
    for variant in (tensor, tensor.clone().requires_grad_() if kind != "bool" else tensor):
        again = back(variant)
        assert (again.shape, again.dtype, again.requires_grad) == (shape, tensor.dtype, variant.requires_grad)
        assert torch.equal(again.detach(), tensor)


def test_a_pickle_of_tensors_is_readable_by_plain_pickle():
    packed = pickle.dumps(back(torch.arange(4)))
    assert torch.equal(pickle.loads(packed), torch.arange(4))
