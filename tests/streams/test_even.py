"""Ranks get as many rows as each other, and nothing is counted that need not be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.rank_split import drop_surplus, fill_up
from headrace.streams.windows import Share, Window

lengths_by_rank = st.lists(st.lists(st.integers(0, 6), max_size=14), min_size=1, max_size=4)


def shares_of(lengths):
    """Shares whose windows have these numbers of rows, told by their keys."""
    return [Share(Window(0, i, (), n)) for i, n in enumerate(lengths)]


def count(shares):
    return [share.window.key if share.most is None else min(share.window.key, share.most) for share in shares]


@given(lengths=lengths_by_rank, data=st.data())
def test_dropping_leaves_the_first_rows(lengths, data):
    rank = data.draw(st.integers(0, len(lengths) - 1))
    n_rows = min(map(sum, lengths))
    told = []
    left = list(drop_surplus([shares_of(one) for one in lengths], rank, count, lambda *numbers: told.append(numbers)))
    [(n_dropped, n_given)] = told
    assert sum(count(left)) == n_rows == n_given
    assert 0 <= n_dropped <= sum(lengths[rank]) - n_rows
    assert [share.window.number for share in left] == list(range(len(left)))
    assert all(share.most is None for share in left[:-1])


@given(lengths=lengths_by_rank, multiple=st.integers(1, 5), data=st.data())
def test_filling_up_repeats_the_beginning(lengths, multiple, data):
    rank = data.draw(st.integers(0, len(lengths) - 1))
    everything = [n for one in lengths for n in one]
    filled = list(fill_up([shares_of(one) for one in lengths], rank, lambda: shares_of(everything), count, multiple))
    n_own = len(lengths[rank])
    assert sum(count(filled)) == -(-max(map(sum, lengths)) // multiple) * multiple
    assert [share.is_again for share in filled] == [False] * n_own + [True] * (len(filled) - n_own)
    assert all(share.window.number == i % len(everything) for i, share in enumerate(filled[n_own:]))


def test_dropping_counts_as_it_goes():
    counted = []

    def noting(shares):
        counted.extend(shares)
        return count(shares)

    left = drop_surplus([shares_of([3] * 100)] * 2, 0, noting)
    assert next(left).window.number == 0
    assert 0 < len(counted) < 20


def test_filling_up_counts_at_the_end():
    def never(shares):
        raise AssertionError("nothing need be counted yet")

    filled = fill_up([shares_of([3] * 3)] * 2, 0, list, never, 1)
    assert [next(filled).window.number for _ in range(3)] == [0, 1, 2]
