"""Arrays as buffers: which are sent so, and what comes back."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from headrace.frameworks.array_transport import PLAIN_TYPES, rebuild_array, reduce_array


@pytest.mark.parametrize("kind", sorted(PLAIN_TYPES))
def test_plain_arrays_are_their_buffer(kind):
    array = np.arange(6).astype(kind).reshape(2, 3)
    function, (buffer, char, shape) = reduce_array(array)
    assert function is rebuild_array
    assert isinstance(buffer, pickle.PickleBuffer)
    back = rebuild_array(buffer, char, shape)
    assert back.dtype == array.dtype
    assert np.shares_memory(back, array)
    assert (back == array).all()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3).T,
        np.arange(6)[::2],
        np.arange(6, dtype=">i4"),
        np.array(["a", "bc"]),
        np.array([None, 1], object),
        np.zeros(2, [("x", "i4")]),
        np.arange(3, dtype=np.longdouble),
        np.array(["2001-01-01"], "M8[D]"),
    ],
)
def test_all_others_go_numpys_own_way(array):
    assert reduce_array(array)[0] is not rebuild_array


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_shapes_without_extent(shape):
    array = np.ones(shape)
    function, arguments = reduce_array(array)
    back = function(*arguments)
    assert back.shape == shape
    assert (back == array).all()
