"""Values in parts: equal when they are put together, without copies in between, in memory that is used again."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.transport.apart import put_together, take_apart, take_code_apart


def test_large_buffers_are_parts_of_their_own():
    value = {"large": np.arange(10**5), "small": np.arange(3), "text": "abc"}
    apart = take_apart(value)
    assert [buffer.nbytes for buffer in apart.buffers] == [800_000]
    assert len(apart.stream) < 1000
    assert apart.n_bytes == len(apart.stream) + 800_000
    again = put_together(apart)
    assert again["text"] == "abc"
    assert (again["large"] == value["large"]).all()
    assert (again["small"] == value["small"]).all()


def test_code_travels_along_and_large_arrays_are_not_copied():
    class Local:
        def __init__(self):
            self.array = np.ones(2**18)

    local = Local()
    apart = take_code_apart((lambda x: x + 1, local))
    assert np.shares_memory(apart.buffers[0], local.array)
    function, again = put_together(apart)
    assert function(1) == 2
    assert np.shares_memory(again.array, local.array)


def test_tensors_share_the_memory_they_are_read_from():
    torch = pytest.importorskip("torch")
    apart = take_code_apart({"large": torch.ones(2**19), "small": torch.ones(3)})
    buffers = [np.frombuffer(bytes(buffer), np.uint8) for buffer in apart.buffers]  # may only be read
    again = put_together(apart, buffers)
    assert again["large"].sum() == 2**19
    assert again["large"].data_ptr() == buffers[0].ctypes.data
    again["small"] += 1  # small ones are each worker's own
    assert again["small"].tolist() == [2, 2, 2]
