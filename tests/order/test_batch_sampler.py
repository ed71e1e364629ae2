"""Batches of indices: cut exactly, drawn lazily, and the fast way only where it is the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import BatchSampler, ChunkedSampler, DataLoader, RandomSampler, SequentialSampler
from tests.needs import as_lists


class InChunks(ChunkedSampler):
    """Gives 0, 1, 2, … in chunks of given sizes."""

    def __init__(self, sizes):
        self.sizes = sizes

    def chunks(self):
        end = 0
        for size in self.sizes:
            yield np.arange(end, end + size)
            end += size

    def __iter__(self):
        return iter(range(sum(self.sizes)))

    def __len__(self):
        return sum(self.sizes)


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 12)), batch_size=st.integers(1, 9), drop_last=st.booleans())
def test_packed_batches_equal_the_plain_ones_however_chunks_fall(sizes, batch_size, drop_last):
    sampler = BatchSampler(InChunks(sizes), batch_size, drop_last)
    plain = list(sampler)
    assert [batch.tolist() for batch in sampler.packed()] == plain
    assert len(sampler) == len(plain)
    assert [i for batch in plain for i in batch] == list(range(sum(map(len, plain))))


def test_draws_no_further_than_the_batch_at_hand():
    drawn = []

    def keys():
        for i in range(10):
            drawn.append(i)
            yield i

    batches = iter(BatchSampler(keys(), 3, False))
    assert drawn == []
    next(batches)
    assert drawn == [0, 1, 2]


def test_any_iterable_of_any_keys_will_do():
    assert list(BatchSampler("abcde", 2, False)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(BatchSampler("abcde", 2, True)) == [["a", "b"], ["c", "d"]]
    assert BatchSampler("abc", 2, False).packed() is None


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, "3", None])
def test_wrong_batch_sizes_are_refused(batch_size):
    with pytest.raises(ValueError, match="batch_size should be a positive integer value, but got batch_size="):
        BatchSampler(range(3), batch_size, False)


def test_a_wrong_drop_last_is_refused():
    with pytest.raises(ValueError, match="drop_last should be a boolean value, but got drop_last=1"):
        BatchSampler(range(3), 2, 1)


class Backwards(SequentialSampler):
    def __iter__(self):
        return iter(range(len(self) - 1, -1, -1))


class OwnBatches(BatchSampler):
    def __iter__(self):
        yield [2, 0]


class UnrelatedChunks:
    """A user's sampler with a method that happens to be called `chunks`."""

    def __iter__(self):
        return iter([1, 0, 2])

    def chunks(self, size):
        raise AssertionError("not meant for the loader")


def test_a_subclass_that_overrides_iter_is_heard():
    assert BatchSampler(Backwards(range(3)), 2, False).packed() is None
    assert as_lists(DataLoader(range(3), sampler=Backwards(range(3)), batch_size=2)) == [[2, 1], [0]]
    assert as_lists(DataLoader(range(3), batch_sampler=OwnBatches(RandomSampler(range(3)), 2, False))) == [[2, 0]]


def test_an_unrelated_method_called_chunks_is_not_mistaken_for_ours():
    assert as_lists(DataLoader(range(3), sampler=UnrelatedChunks(), batch_size=3)) == [[1, 0, 2]]
