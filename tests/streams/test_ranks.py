"""Ranks share a stream: nothing twice, nothing missing but what `even` drops, as many batches for one as for all."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import DataLoader, Stream
from tests.streams.memory import in_memory

EVEN = ["drop", "pad", "repeat", "allow"]

few_windows = st.lists(st.integers(4, 9), min_size=1, max_size=6)
many_windows = st.lists(st.integers(1, 5), min_size=32, max_size=40)


def numbers(lengths, *, known):
    """A stream of the numbers from 0 on, in windows of these lengths."""
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    blocks = list(pairwise(starts))
    return Stream.from_blocks(blocks, lambda block: range(*block), counts=lengths if known else None)


def share(stream, rank, world, **options):
    with DataLoader(stream, shard=(rank, world), collate_fn=list, engine="threads", **options) as loader:
        return list(loader)


def shares(stream, world, **options):
    return [share(stream, rank, world, **options) for rank in range(world)]


def rows_of(parts):
    return [row for batches in parts for batch in batches for row in batch]


@settings(deadline=None, max_examples=30)
@given(
    lengths=few_windows | many_windows,
    world=st.integers(1, 4),
    even=st.sampled_from(EVEN),
    size=st.integers(1, 7),
    drop_last=st.booleans(),
    window=st.none() | st.integers(1, 2),
    known=st.booleans(),
)
def test_what_the_ranks_have_together(lengths, world, even, size, drop_last, window, known):
    stream = numbers(lengths, known=known)
    if window is not None:
        stream = stream.shuffle(blocks=window)
    parts = shares(stream, world, batch_size=size, even=even, drop_last=drop_last)
    rows, n_rows = rows_of(parts), sum(lengths)
    assert set(rows) <= set(range(n_rows))
    if even in ("drop", "allow") or world == 1:
        assert len(rows) == len(set(rows))
    if even == "allow" and not drop_last:
        assert sorted(rows) == list(range(n_rows))
    if even in ("pad", "repeat") and not drop_last:
        assert set(rows) == set(range(n_rows))
    if even != "allow":
        assert len({len(batches) for batches in parts}) == 1
    if drop_last or (even == "repeat" and world > 1):
        assert {len(batch) for batches in parts for batch in batches} <= {size}


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("lengths", [[9, 4, 4], [3, 2] * 16], ids=["few windows", "many windows"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_knows_its_number_of_batches(lengths, even, drop_last):
    for rank in range(2):
        loader = DataLoader(numbers(lengths, known=True), batch_size=3, shard=(rank, 2), even=even, drop_last=drop_last)
        assert len(loader) == len(list(loader)) > 0


def test_the_number_of_batches_is_not_known_without_reading():
    with pytest.raises(TypeError, match="count"):
        len(DataLoader(numbers([3, 4], known=False), batch_size=2, shard=(0, 2)))
    with pytest.raises(TypeError, match="count"):
        len(DataLoader(numbers([3, 4], known=True).filter(bool), batch_size=2))


@pytest.mark.parametrize("even", ["drop", "pad"])
def test_one_small_file_is_shared(tmp_path, even):
    path = tmp_path / "small.txt"
    path.write_text("".join(f"{i}\n" for i in range(40)))
    parts = shares(headrace.read_text(path), 2, batch_size=4, even=even)
    assert [len(batches) for batches in parts] == [5, 5]
    assert sorted(map(int, rows_of(parts))) == list(range(40))


def test_padding_where_a_filter_leaves_rows_of_one_file_only(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n" * 5)
    stream = headrace.read_text(tmp_path).filter(lambda line: line == "a")
    parts = shares(stream, 2, batch_size=2, even="pad")
    assert [len(batches) for batches in parts] == [2, 2]


def test_a_random_filter_leaves_ranks_even():
    stream = in_memory(40, 4).filter(lambda row: headrace.rng().random() < 0.5)
    for seed in range(10):
        parts = shares(stream, 3, batch_size=2, seed=seed)
        assert len({len(batches) for batches in parts}) == 1
        assert len(set(rows_of(parts))) == len(rows_of(parts))


def test_the_seed_of_the_shuffle_is_used():
    first, again, other = (
        share(in_memory(40, 4).shuffle(blocks=3, seed=seed), 0, 1, batch_size=3) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_workers_make_no_difference_to_a_rank():
    stream = in_memory(90, 4).shuffle(blocks=2).filter(lambda row: row % 3)
    for rank in range(2):
        expected = share(stream, rank, 2, batch_size=4)
        assert share(stream, rank, 2, batch_size=4, num_workers=2) == expected


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("lengths", [[9, 4, 4], [3, 1] * 16], ids=["few windows", "many windows"])
def test_a_rank_goes_on_after_any_batch(lengths, even):
    def make():
        stream = numbers(lengths, known=False)
        return DataLoader(stream, batch_size=4, shard=(1, 2), even=even, collate_fn=list)

    loader = make()
    seen = [(batch, loader.state_dict()) for batch in loader]
    for at, (_, state) in enumerate(seen[:-1]):
        resumed = make()
        resumed.load_state_dict(state)
        assert list(resumed) == [batch for batch, _ in seen[at + 1 :]]


def test_many_windows_are_dealt_and_of_few_the_rows():
    few, many = (share(in_memory(4 * n, 4), 1, 2, batch_size=2, even="allow") for n in (15, 16))
    assert [row for batch in few for row in batch] == [row for row in range(60) if row % 2 == (1 - row // 4) % 2]
    assert [row for batch in many for row in batch] == [row for row in range(64) if row // 4 % 2]


@pytest.mark.parametrize(
    ("even", "expected"),
    [
        ("drop", [[[0, 3, 6]], [[1, 4, 7]], [[2, 5, 8]]]),
        ("pad", [[[0, 3, 6], [9]], [[1, 4, 7], [0]], [[2, 5, 8], [0]]]),
        ("repeat", [[[0, 3, 6], [9, 0, 1]], [[1, 4, 7], [0, 1, 2]], [[2, 5, 8], [0, 1, 2]]]),
        ("allow", [[[0, 3, 6], [9]], [[1, 4, 7]], [[2, 5, 8]]]),
    ],
)
def test_what_even_means(even, expected):
    assert shares(numbers([10], known=False), 3, batch_size=3, even=even) == expected


@pytest.mark.parametrize("even", ["pad", "repeat"])
def test_a_rank_without_any_row_is_filled_up(even):
    parts = shares(numbers([3], known=True), 5, batch_size=2, even=even)
    assert {len(batches) for batches in parts} == {1}
    assert shares(numbers([0], known=False), 3, batch_size=2, even=even) == [[], [], []]


def test_uneven_windows_lose_few_rows():
    """17 windows on 2 ranks: 8 for each, and of the last one every other row."""
    assert len(set(rows_of(shares(numbers([10] * 17, known=False), 2, batch_size=5)))) == 170


@pytest.mark.parametrize(("largest", "warns"), [(3000, True), (20, False)])
def test_many_rows_that_are_left_out_are_told(largest, warns):
    lengths = [largest] + [5] * 31
    stream = Stream.from_blocks(lengths, lambda n: range(n))
    loader = DataLoader(stream, batch_size=4, shard=(0, 2), output="numpy")
    with pytest.warns(UserWarning, match='rank 0 leaves out .* even="pad"') if warns else nullcontext():
        n_rows = sum(len(batch) for batch in loader)
    assert n_rows == 16 * 5
    assert sum(len(batch) for batch in loader) == n_rows  # it is said once
