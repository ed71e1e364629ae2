"""Long values in several pieces of memory."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.chunks import LongValues, PickedColumn, SideBySide


def side_by_side(values):
    borders = np.cumsum([0, *map(len, values)])
    return SideBySide(borders, np.frombuffer(b"".join(values), np.uint8))


@given(
    parts=st.lists(st.lists(st.text(max_size=9), min_size=1, max_size=5), min_size=1, max_size=4),
    is_text=st.booleans(),
    is_sent=st.booleans(),
    data=st.data(),
)
def test_values_are_found_in_any_order(parts, is_text, is_sent, data):
    values = [text if is_text else text.encode() for part in parts for text in part]
    long = LongValues([side_by_side([text.encode() for text in part]) for part in parts], is_text=is_text)
    places = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=12))
    column = PickedColumn(long, np.array(places, np.int64))
    column = pickle.loads(pickle.dumps(column, 5)) if is_sent else column
    assert len(column) == len(places)
    assert column.materialize() == [values[place] for place in places]
    assert column[1:3].materialize() == [values[place] for place in places[1:3]]


def test_all_slices_are_sent_with_the_memory_once():
    memory = np.arange(200, dtype=np.uint8)
    column = PickedColumn(LongValues([SideBySide(np.array([0, 100, 200]), memory)], is_text=False), np.array([1, 0, 1]))
    buffers = []
    stream = pickle.dumps([column[0:1], column[1:3]], 5, buffer_callback=buffers.append)
    assert [buffer.raw().nbytes for buffer in buffers].count(200) == 1
    first, second = pickle.loads(stream, buffers=buffers)
    assert first.materialize() + second.materialize() == [
        bytes(range(100, 200)),
        bytes(range(100)),
        bytes(range(100, 200)),
    ]
