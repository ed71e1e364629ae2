"""Datasets by key and as streams, over arrays, and made of others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from headrace.data.dataset import is_iterable_dataset
from tests.needs import needs_torch


class Letters(Dataset):
    def __getitem__(self, index):
        return "abc"[index]

    def __len__(self):
        return 3


class Stream(IterableDataset):
    def __init__(self, *values):
        self.values = values

    def __iter__(self):
        return iter(self.values)


def test_abstract_methods_say_what_to_write():
    with pytest.raises(NotImplementedError, match=r"Dataset must implement __getitem__"):
        Dataset()[0]
    with pytest.raises(NotImplementedError, match=r"IterableDataset must implement __iter__"):
        iter(IterableDataset())


def test_plus_concatenates_and_chains():
    assert type(Letters() + Letters()) is ConcatDataset
    assert "".join((Letters() + Letters())[i] for i in range(6)) == "abcabc"
    assert type(Stream(1) + Stream(2)) is ChainDataset
    assert list(Stream(1) + Stream(2, 3)) == [1, 2, 3]


def test_a_dataset_has_no_length_of_its_own():
    with pytest.raises(TypeError):
        len(Stream(1))
    assert not hasattr(Dataset(), "__len__")


def test_only_iterable_datasets_are_streams():
    assert is_iterable_dataset(Stream())
    assert not is_iterable_dataset(Letters())
    assert not is_iterable_dataset([1, 2])
    assert not is_iterable_dataset(iter([1, 2]))


@needs_torch
def test_torchs_streams_are_streams():
    import torch

    class TorchStream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([])

    assert is_iterable_dataset(TorchStream())
    assert not is_iterable_dataset(torch.utils.data.TensorDataset(torch.arange(3)))


def test_datasets_can_be_generic():
    assert Dataset[int].__origin__ is Dataset
    assert IterableDataset[str].__origin__ is IterableDataset


def test_a_sample_is_a_tuple_of_rows():
    dataset = TensorDataset(np.arange(6).reshape(3, 2), np.array([7, 8, 9]))
    row, label = dataset[-1]
    assert (row.tolist(), label) == ([4, 5], 9)
    assert len(dataset) == 3
    with pytest.raises(IndexError):
        dataset[3]


def test_first_dimensions_must_agree():
    with pytest.raises(AssertionError, match=r"Size mismatch between tensors: their first dimensions are \[3, 2\]"):
        TensorDataset(np.zeros(3), np.zeros(2))


@needs_torch
def test_arrays_and_tensors_may_be_mixed():
    import torch

    dataset = TensorDataset(torch.arange(4.0), np.arange(4, dtype=np.int32))
    for batch in (next(iter(DataLoader(dataset, batch_size=4))), next(iter(DataLoader(dataset)))):
        assert [column.dtype for column in batch] == [torch.float32, torch.int32]


class Batched(Dataset):
    """Remembers which whole batches it was asked for."""

    def __init__(self, values):
        self.values = list(values)
        self.asked = []

    def __getitem__(self, index):
        raise AssertionError("single samples were not to be asked for")

    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [self.values[i] for i in indices]

    def __len__(self):
        return len(self.values)


class Short(Batched):
    def __getitems__(self, indices):
        return [0]


class Numbers(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))

    def __len__(self):
        return self.n


@settings(deadline=None)
@given(parts=st.lists(st.lists(st.integers(), max_size=5), min_size=1, max_size=5), data=st.data())
def test_a_concatenation_is_one_long_list(parts, data):
    dataset, whole = ConcatDataset(parts), [x for part in parts for x in part]
    assert len(dataset) == len(whole)
    assert [dataset[i] for i in range(len(whole))] == whole
    assert [dataset[i] for i in range(-len(whole), 0)] == whole
    if whole:
        indices = data.draw(st.lists(st.integers(-len(whole), len(whole) - 1)))
        assert dataset.__getitems__(indices) == [whole[i] for i in indices]
    with pytest.raises(IndexError):
        dataset[len(whole)]
    with pytest.raises(ValueError, match="absolute value of index should not exceed dataset length"):
        dataset[-len(whole) - 1]


def test_a_concatenation_asks_each_part_once():
    first, second = Batched("abc"), Batched("de")
    assert ConcatDataset([first, second]).__getitems__([4, 0, 3, -3, 1]) == ["e", "a", "d", "c", "b"]
    assert (first.asked, second.asked) == ([[0, 2, 1]], [[1, 0]])


def test_what_cannot_be_concatenated():
    with pytest.raises(AssertionError, match="datasets should not be an empty iterable"):
        ConcatDataset([])
    with pytest.raises(AssertionError, match=r"does not support IterableDataset. Use ChainDataset"):
        ConcatDataset([[1], Numbers(2)])


def test_a_chain_is_lazy_and_checks_each_dataset_in_its_turn():
    chain = ChainDataset([Numbers(2), Numbers(3)])
    assert list(chain) == [0, 1, 0, 1, 2]
    assert len(chain) == 5
    broken = iter(ChainDataset([Numbers(1), [5]]))
    assert next(broken) == 0
    with pytest.raises(AssertionError, match=r"only supports IterableDataset, got list. Use ConcatDataset"):
        next(broken)


def test_a_stack_puts_datasets_side_by_side():
    assert StackDataset("ab", [1, 2])[-1] == ("b", 2)
    assert StackDataset("ab", [1, 2]).__getitems__([1, 0]) == [("b", 2), ("a", 1)]
    named = StackDataset(letter="ab", number=[1, 2])
    assert named.__getitems__([1]) == [{"letter": "b", "number": 2}] == [named[1]]
    assert len(named) == 2


def test_whole_batches_pass_through_subset_and_stack():
    letters, numbers = Batched("abcd"), Batched([1, 2, 3, 4])
    stack = Subset(StackDataset(letters, numbers), [3, 1, 0])
    assert stack.__getitems__([2, 0]) == [("a", 1), ("d", 4)]
    assert letters.asked == numbers.asked == [[0, 3]]


def test_a_nested_dataset_must_return_what_was_asked():
    with pytest.raises(ValueError, match="__getitems__ of Short should return 2 samples, but returned 1"):
        StackDataset(Short("abc")).__getitems__([0, 1])
    with pytest.raises(ValueError, match="should return 2 samples, but returned 1"):
        ConcatDataset([Short("abc")]).__getitems__([0, 1])


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "At least one dataset"),
        (("ab",), {"x": "ab"}, "either by position or by name"),
        (("ab", "abc"), {}, r"Size mismatch between datasets: their lengths are \[2, 3\]"),
    ],
)
def test_what_cannot_be_stacked(args, kwargs, words):
    with pytest.raises(ValueError, match=words):
        StackDataset(*args, **kwargs)


@pytest.mark.parametrize("base", [StackDataset, ConcatDataset])
def test_a_subclass_that_overrides_getitem_is_heard_in_batches_too(base):
    class Own(base):
        def __getitem__(self, index):
            return ("own", index)

    assert Own(["ab"]).__getitems__([0]) == [("own", 0)]


def test_a_subset_selects():
    subset = Subset("abcdef", [4, 0, 2])
    assert [subset[i] for i in range(3)] == ["e", "a", "c"]
    assert subset[-1] == "c"
    assert len(subset) == 3
    assert Subset(np.arange(10) * 10, [4, 0, 2])[[2, 0]].tolist() == [20, 40]


def test_a_subset_that_overrides_getitem_alone_is_refused():
    class Halfway(Subset):
        def __getitem__(self, idx):
            return 1

    class Whole(Halfway):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    with pytest.raises(NotImplementedError, match="Halfway overrides __getitem__ but not __getitems__"):
        Halfway("abc", [0])
    assert Whole("abc", [0, 1]).__getitems__([0, 1]) == [1, 1]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 10), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_a_split_is_a_partition(sizes, seed):
    n = sum(sizes)
    if n == 1:
        return  # lengths that sum to 1 are fractions
    parts = random_split(range(n), sizes, generator=np.random.default_rng(seed))
    assert [len(part) for part in parts] == sizes
    assert sorted(x for part in parts for x in part) == list(range(n))
    again = random_split(range(n), sizes, generator=np.random.default_rng(seed))
    assert [part.indices for part in parts] == [part.indices for part in again]


def test_fractions_deal_the_remainder_from_the_first_part_on():
    assert [len(part) for part in random_split(range(11), [0.5, 0.3, 0.2])] == [6, 3, 2]
    assert [len(part) for part in random_split(range(5), [1 / 3] * 3)] == [2, 2, 1]


def test_a_split_says_what_is_wrong():
    with pytest.raises(ValueError, match=r"Sum of input lengths does not equal .*: \[1, 2\] sum to 3, .* 4 samples"):
        random_split(range(4), [1, 2])
    with pytest.raises(ValueError, match=r"Fraction at index 1 is not between 0 and 1, got 1\.5"):
        random_split(range(4), [0.0, 1.5, -0.5])
    with pytest.warns(UserWarning, match="Length of split at index 1 is 0"):
        random_split(range(1), [0.5, 0.5])


def test_a_split_is_repeatable_by_np_random_seed():
    splits = []
    for seed in (0, 0, 1):
        np.random.seed(seed)
        splits.append([part.indices for part in random_split(range(20), [10, 10], library="numpy")])
    assert splits[0] == splits[1] != splits[2]


def test_a_split_draws_from_the_generator_it_is_given():
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    random_split(range(10), [5, 5], generator=np.random.default_rng(0))
    assert np.random.get_state()[1].tolist() == before


@needs_torch
def test_torchs_datasets_may_be_parts():
    import torch
    from torch.utils import data

    tensors = data.TensorDataset(torch.arange(4))
    assert ConcatDataset([tensors, data.Subset(tensors, [3])])[-1] == (torch.tensor(3),)
    assert StackDataset(tensors, "abcd")[2] == ((torch.tensor(2),), "c")
