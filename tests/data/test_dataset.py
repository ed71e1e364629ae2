"""The two abstract datasets, and what counts as a stream."""

from __future__ import annotations

import pytest

from headrace import ChainDataset, ConcatDataset, Dataset, IterableDataset
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
