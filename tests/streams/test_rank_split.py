"""What ranks get of the windows: together everything once, also when the number of ranks changes on the way."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import StateError
from headrace.streams.rank_split import FEWEST_PER_RANK, Deal, Item, Pool, left_over

lengths_of_windows = st.lists(st.integers(0, 7), max_size=60)


def rows_of(item, lengths):
    return [(item.place, row) for row in range(lengths[item.place])][item.first :: item.step][item.skip :]


def deals_of(pool, lengths, world, *, splits_begun=True):
    n_items = pool.n_items(len(lengths))
    return [Deal(pool, n_items, rank, world, splits_begun=splits_begun) for rank in range(world)]


def all_rows(lengths):
    return Counter((place, row) for place, n in enumerate(lengths) for row in range(n))


@given(lengths=lengths_of_windows, world=st.integers(1, 5))
def test_ranks_have_every_row_once(lengths, world):
    deals = deals_of(Pool(), lengths, world)
    given_rows = [rows_of(item, lengths) for deal in deals for _, item in deal]
    assert Counter(row for rows in given_rows for row in rows) == all_rows(lengths)
    assert [len(list(deal)) for deal in deals] == [deal.n_items for deal in deals]


@given(
    lengths=st.lists(st.integers(0, 5), max_size=30),
    worlds=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    data=st.data(),
)
def test_what_is_left_is_dealt_anew(lengths, worlds, data):
    splits = data.draw(st.booleans())
    pool, seen = Pool(), Counter()
    for world in worlds[:-1]:
        deals = deals_of(pool, lengths, world, splits_begun=splits)
        reached = []
        for deal in deals:
            items = [rows_of(item, lengths) for _, item in deal]
            index = data.draw(st.integers(0, len(items)))
            row = data.draw(st.integers(0, len(items[index]))) if index < len(items) else 0
            reached.append((index, row))
            seen.update(row for rows in items[:index] for row in rows)
            seen.update(items[index][:row] if row else [])
        pool = left_over(pool, deals, reached)
    for deal in deals_of(pool, lengths, worlds[-1], splits_begun=splits):
        seen.update(row for _, item in deal for row in rows_of(item, lengths))
    assert seen == all_rows(lengths)


def test_many_windows_are_dealt_whole_but_the_last_few_by_rows():
    deals = deals_of(Pool(), [4] * (2 * FEWEST_PER_RANK + 1), 2)
    for rank, deal in enumerate(deals):
        whole = [Item(2 * i + rank) for i in range(FEWEST_PER_RANK)]
        assert [item for _, item in deal] == [*whole, Item(16, rank, 2)]


def test_of_few_windows_each_rank_has_rows_and_another_one_begins_each_time():
    deals = deals_of(Pool(), [4] * 3, 2)
    assert [item for _, item in deals[0]] == [Item(0, 0, 2), Item(1, 1, 2), Item(2, 0, 2)]


def test_without_an_end_there_is_always_more():
    deal = Deal(Pool(), None, 1, 3)
    assert deal.n_items is None
    assert deal[10**9][1] == Item(3 * 10**9 + 1)


def test_ranks_that_are_too_far_apart_are_refused_at_once():
    """Of a stream without end, all windows between them would be listed."""
    deals = [Deal(Pool(), None, rank, 2) for rank in range(2)]
    with pytest.raises(StateError, match=r"one rank has read 4,294,967,296 windows of the stream's, another .* 6 only"):
        left_over(Pool(), deals, [(3, 0), (2**31, 0)])
