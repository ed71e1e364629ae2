"""Many `bytes` as one value, and how they are sent."""

from __future__ import annotations

import pickle
from array import array

import pytest

from headrace.base.packed_bytes import Held, PackedBytes, Stretch


def stretch(*values):
    return Stretch(array("Q", map(len, values)).tobytes(), b"".join(values))


ONE = [b"one", b"", b"two" * 100]
TWO = [b"three"]


def sent(value, *, out_of_band):
    buffers = []
    stream = pickle.dumps(value, 5, buffer_callback=buffers.append if out_of_band else None)
    return pickle.loads(stream, buffers=buffers)


@pytest.mark.parametrize("out_of_band", [False, True])
@pytest.mark.parametrize("lists", [[ONE], [ONE, TWO], [TWO, ONE, TWO]])
def test_they_arrive_as_a_list(lists, out_of_band):
    packed = PackedBytes.joined(PackedBytes(stretch(*values)) for values in lists)
    whole = [value for values in lists for value in values]
    assert (len(packed), packed.tolist()) == (len(whole), whole)
    assert sent(packed, out_of_band=out_of_band) == whole
    held = sent(Held(packed), out_of_band=out_of_band)
    assert type(held) is Held
    assert held.packed.tolist() == whole
