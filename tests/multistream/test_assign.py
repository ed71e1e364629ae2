"""Which pieces each position reads."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.multistream.assign import (
    ListedPieces,
    ShuffledPieces,
    Shuffles,
    following_pieces,
    items_of,
    locate,
    partition,
)
from tests.multistream.oracle import deal

QUICK = settings(deadline=None, max_examples=100)
lengths = st.lists(st.integers(0, 20), min_size=1, max_size=12)


def shuffled(n, positions, position, key=5):
    return ShuffledPieces(Shuffles(n, key), positions, position)


@QUICK
@given(n=st.integers(1, 40), positions=st.integers(1, 9), data=st.data())
def test_every_cycle_of_a_position_has_all_pieces(n, positions, data):
    order = shuffled(n, positions, data.draw(st.integers(0, positions - 1)))
    for cycle in range(3):
        pieces = order.at(np.arange(cycle * n, (cycle + 1) * n))
        assert sorted(pieces.tolist()) == list(range(n))
        singly = [int(order.at(np.array([ordinal]))[0]) for ordinal in range(cycle * n, (cycle + 1) * n)]
        assert singly == pieces.tolist()


@pytest.mark.parametrize("n", [6, 2048, 2049, 10**6])
def test_positions_begin_cycles_with_different_pieces(n):
    for cycle in range(3):
        firsts = [int(shuffled(n, 6, position).at(np.array([cycle * n]))[0]) for position in range(6)]
        assert len(set(firsts)) == 6
    assert shuffled(2, 5, 4).at(np.arange(2)).tolist() == shuffled(2, 5, 4).at(np.arange(2)).tolist()


def test_long_shuffles_are_permutations_too():
    n = 5000
    pieces = shuffled(n, 3, 1).at(np.arange(2 * n))
    assert sorted(pieces[:n].tolist()) == sorted(pieces[n:].tolist()) == list(range(n))
    assert (pieces[:n] != pieces[n:]).mean() > 0.99


def test_all_orders_are_equally_likely():
    counts = Counter(tuple(shuffled(3, 1, 0, key=key).at(np.arange(3)).tolist()) for key in range(3000))
    assert len(counts) == 6
    assert all(400 < count < 600 for count in counts.values())


@QUICK
@given(lengths=lengths, groups=st.integers(1, 8))
def test_partition_is_that_of_the_longest_first(lengths, groups):
    dealt = partition(np.array(lengths), len(lengths), groups)
    assert [group.tolist() for group in dealt] == deal(tuple(lengths), groups)
    assert sorted(piece for group in dealt for piece in group.tolist()) == list(range(len(lengths)))


@QUICK
@given(lengths=lengths, groups=st.integers(1, 8))
def test_partition_is_even(lengths, groups):
    """No group has more than another by more than one piece of its own."""
    loads = [
        [lengths[piece] for piece in group.tolist()] for group in partition(np.array(lengths), len(lengths), groups)
    ]
    largest = max(loads, key=sum)
    assert sum(largest) - min(largest, default=0) <= min(map(sum, loads))


def test_without_lengths_pieces_are_dealt_in_turn():
    assert [group.tolist() for group in partition(None, 5, 2)] == [[0, 2, 4], [1, 3]]


@QUICK
@given(n=st.integers(1, 30), positions=st.integers(1, 12))
def test_offsets_share_all_pieces(n, positions):
    orders = [following_pieces(n, positions, position) for position in range(positions)]
    read = [piece for order in orders for piece in order.at(np.arange(order.share)).tolist()]
    assert read == list(range(n))
    assert all(sorted(order.at(np.arange(n)).tolist()) == list(range(n)) for order in orders)


@QUICK
@given(lengths=lengths.filter(any), step=st.integers(0, 500), kind=st.integers(0, 2), position=st.integers(0, 3))
def test_places_are_found_by_adding_up(lengths, step, kind, position):
    n, sizes = len(lengths), np.array(lengths)
    order = [shuffled(n, 4, position), ListedPieces(np.arange(n)[::-1]), following_pieces(n, 4, position)][kind]
    ordinal, left = 0, step
    while left >= (size := lengths[int(order.at(np.array([ordinal]))[0])]):
        left -= size
        ordinal += 1
    assert locate(order, sizes, step) == (ordinal, left)


def test_places_are_found_among_many_pieces():
    sizes = np.full(20_000, 3)
    order = shuffled(20_000, 4, 2)
    assert items_of(order, sizes, 20_000) == 60_000
    assert locate(order, sizes, 60_000 * 7 + 50_001) == (7 * 20_000 + 16_667, 0)
    assert locate(ListedPieces(np.arange(3)), np.zeros(3, np.int64), 5) == (3, 0)
