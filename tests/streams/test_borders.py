"""Where batches fall in windows: as one reader would cut them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.borders import BatchBorders, ColumnBorders
from headrace.streams.messages import CutBatches, SendRows
from headrace.streams.windows import Share, Window


def share(number):
    return Share(Window(0, number, (), number))


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    first=st.integers(0, 19),
    size=st.integers(1, 9),
    at_once=st.integers(1, 30),
    n_before=st.integers(0, 5),
)
def test_windows_are_cut_as_one_reader_would(lengths, first, size, at_once, n_before):
    first = min(first, lengths[0] - 1)
    borders = BatchBorders(size, n_before)
    n_given = 0
    for number, n_rows in enumerate(lengths):
        place = start = 0 if number else first
        requests = borders.cut(share(number), start, n_rows, at_once)
        for request in requests:
            assert request.start == place  # nothing is left out, nothing comes twice
            if isinstance(request, CutBatches):
                n_batches, rest = divmod(request.stop - request.start, size)
                assert rest == 0 < n_batches <= max(1, at_once // size)
                assert n_given + request.start - start == (request.number - n_before) * size
            place = request.stop
        assert place == n_rows
        assert [isinstance(request, SendRows) and request.is_last for request in requests].index(True) == len(
            requests
        ) - 1
        n_given += n_rows - start


@given(n_rows=st.integers(1, 50), first=st.integers(0, 49), at_once=st.integers(0, 30), is_shuffled=st.booleans())
def test_columns_are_cut_in_equal_parts_and_shuffled_ones_not_at_all(n_rows, first, at_once, is_shuffled):
    first = min(first, n_rows - 1)
    window = Window(0, 0, (), 0, is_shuffled)
    requests = ColumnBorders().cut(Share(window), first, n_rows, at_once)
    assert [row for request in requests for row in range(request.start, request.stop)] == list(range(first, n_rows))
    assert [request.is_last for request in requests] == [False] * (len(requests) - 1) + [True]
    lengths = [request.stop - request.start for request in requests]
    assert len(requests) == 1 if is_shuffled else max(lengths) <= max(1, at_once) and max(lengths) - min(lengths) <= 1
