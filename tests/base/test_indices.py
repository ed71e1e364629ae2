"""Integer keys become one array; anything else is left to be fetched key by key."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.indices import as_index_array


@pytest.mark.parametrize(
    "keys",
    [[3, 1, 2], (3, 1, 2), [np.int64(3), 1, 2], np.array([3, 1, 2]), np.array([3, 1, 2], np.uint8)],
)
def test_integers_become_an_int64_array(keys):
    array = as_index_array(keys)
    assert array.dtype == np.int64
    assert array.tolist() == [3, 1, 2]


def test_a_range_keeps_its_step():
    assert as_index_array(range(7, 0, -3)).tolist() == [7, 4, 1]


@pytest.mark.parametrize(
    "keys",
    [[True, False], [1.0], ["a"], [1, None], "12", {1, 2}, np.array([True]), np.array([[1]]), np.array([1.0]), 3],
)
def test_anything_else_is_refused(keys):
    assert as_index_array(keys) is None
