"""Many `bytes` as one value, and how they are sent."""

from __future__ import annotations

import pickle
from array import array

import pytest

from headrace.base.packed_bytes import PackedBytes


@pytest.mark.parametrize("out_of_band", [False, True])
@pytest.mark.parametrize("values", [[b"one", b"", b"two" * 100], [b"three"]])
def test_they_arrive_as_a_list(values, out_of_band):
    packed = PackedBytes(array("Q", map(len, values)).tobytes(), b"".join(values))
    buffers = []
    stream = pickle.dumps(packed, 5, buffer_callback=buffers.append if out_of_band else None)
    assert pickle.loads(stream, buffers=buffers) == values
