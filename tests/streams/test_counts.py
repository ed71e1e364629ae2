"""Rows are counted once: in the workers, and never again where the number is the same in every epoch."""

from __future__ import annotations

import pytest

import headrace
from headrace import DataLoader, Stream
from headrace.order.shard import Shard
from headrace.streams.counts import RowCounts
from headrace.streams.reading import count_in
from headrace.streams.windows import PastTheEndError, Share
from tests.streams.memory import in_memory


class Asked:
    """Counts, and remembers what it was asked."""

    def __init__(self, recipe):
        self._count = count_in(recipe, 0)
        self.windows = []

    def __call__(self, requests):
        self.windows += [request.share.window.number for request in requests]
        return self._count(requests)


def counted_in_two_epochs(stream):
    """How many rows the windows have, and how often somebody was asked, epoch by epoch."""
    counts, ask = RowCounts(stream.recipe), Asked(stream.recipe)
    numbers, asked = [], []
    for epoch in range(2):
        shares = [Share(window) for window in stream.recipe.epoch_windows(0, epoch, counts, ask)]
        before = len(ask.windows)
        numbers.append(sum(counts.count(shares, ask)))
        assert counts.count(shares, ask) == [counts.known(share) for share in shares]
        asked.append(len(ask.windows) - before)
    return numbers, asked


@pytest.mark.parametrize(
    ("stream", "numbers", "asked"),
    [
        (Stream.from_blocks([3, 4], range, counts=[3, 4]).map(str), [7, 7], [0, 0]),
        (in_memory(20, 4), [20, 20], [5, 0]),
        (in_memory(20, 4).shuffle(blocks=2), [20, 20], [3, 0]),
        (in_memory(20, 4).shuffle(blocks=2).filter(lambda n: n % 2), [10, 10], [3, 0]),
        (in_memory(20, 4).map(lambda n: [n] * n).pack(3), [190, 190], [5, 0]),
        (in_memory(20, 4).map_batches(lambda columns: {"a": columns["value"][:1]}, 3), [10, 10], [5, 0]),
    ],
    ids=["known", "unknown", "shuffled", "by row", "packed", "by batch"],
)
def test_a_number_that_stays_is_counted_once(stream, numbers, asked):
    assert counted_in_two_epochs(stream) == (numbers, asked)


@pytest.mark.parametrize("draw", [lambda: headrace.rng().random(), __import__("random").random])
def test_what_depends_on_random_numbers_is_counted_in_every_epoch(draw):
    numbers, asked = counted_in_two_epochs(in_memory(400, 40).filter(lambda n: draw() < 0.5))
    assert asked == [10, 10]
    assert numbers[0] != numbers[1]


def test_batches_of_shuffled_windows_are_counted_in_every_epoch():
    stream = in_memory(20, 4).shuffle(blocks=2).map_batches(lambda columns: {"a": columns["value"]}, 3)
    assert counted_in_two_epochs(stream)[1] == [3, 3]


def test_parts_of_windows_are_told_by_the_whole():
    stream = in_memory(10, 10)
    counts, ask = RowCounts(stream.recipe), Asked(stream.recipe)
    window = stream.recipe.plan(None, 0).window(0)
    shares = [Share(window), Share(window, 1, 3), Share(window, 1, 3, skip=1), Share(window, 0, 2, most=2)]
    assert counts.count(shares, ask) == [10, 3, 2, 2]
    assert ask.windows == [0]


def test_a_window_past_the_end_has_no_number():
    stream = Stream.from_iterable(lambda: iter(range(5)), block_rows=3)
    counts, ask = RowCounts(stream.recipe), Asked(stream.recipe)
    windows = stream.recipe.epoch_windows(None, 0, counts, ask)
    assert counts.count([Share(windows.window(i)) for i in range(2)], ask) == [3, 2]
    with pytest.raises(PastTheEndError):
        counts.count([Share(windows.window(2))], ask)


class Noted:
    """Notes how often it is called in this process."""

    def __init__(self):
        self.n_calls = 0

    def __call__(self, row):
        self.n_calls += 1
        return [row]


@pytest.mark.parametrize("even", ["drop", "pad"])
def test_ranks_count_in_the_workers(even):
    noted = Noted()
    loader = DataLoader(in_memory(40, 4).flat_map(noted), 3, shard=(0, 2), even=even, num_workers=1)
    with loader:
        assert [len(batch) for batch in loader] == [3] * 6 + [2]
    assert noted.n_calls == 0


def test_each_row_is_counted_once_and_read_once_in_each_epoch():
    noted = Noted()
    loader = DataLoader(in_memory(64, 4).flat_map(noted), 3, shard=(0, 2), collate_fn=list)
    calls = []
    for _ in range(2):
        assert sum(map(len, loader)) == 32
        calls.append(noted.n_calls)
    assert calls == [64 + 32, 64 + 2 * 32]


def test_one_rank_alone_counts_nothing():
    noted = Noted()
    list(DataLoader(in_memory(40, 4).flat_map(noted), 3, shard=(0, 1)))
    assert noted.n_calls == 40
    assert Shard().world == 1
