"""Tensors as arrays: what is sent, how much of it, and what is rebuilt."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.needs import HAS_TORCH, needs_torch

pytestmark = needs_torch

if HAS_TORCH:
    import torch

    from headrace.frameworks.torch_transport import from_numpy, rebuild_tensor, reduce_tensor


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
