"""Datasets by themselves: the same items, lengths and errors as torch's."""

from __future__ import annotations

import copy
import pickle
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import given
from hypothesis import strategies as st

import headrace

from . import sources
from .equality import fingerprint, outcome
from .exploring import explore

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

LIBRARIES = (torch_data, headrace)


def seen(dataset: Any, indices: list[int]) -> list[Any]:
    notes = [outcome(lambda: len(dataset))]
    notes += [outcome(lambda i=i: dataset[i]) for i in indices]
    if hasattr(dataset, "__getitems__") and not isinstance(dataset, headrace.ConcatDataset):
        inside = [i for i in indices if -len(dataset) <= i < len(dataset)]
        notes.append(outcome(lambda: dataset.__getitems__(inside)))
    return notes


@explore(200)
@given(st.data(), st.integers(0, 8))
def test_items(data: st.DataObject, n: int) -> None:
    source = data.draw(sources.map_sources(n), label="dataset")
    indices = data.draw(st.lists(st.integers(-n - 2, n + 2), max_size=6), label="indices")
    expected, got = [], []
    for notes, library in zip((expected, got), LIBRARIES, strict=True):
        torch.manual_seed(0), np.random.seed(0), sources.random.seed(0)
        notes += seen(source.build(library), indices)
    assert got == expected


@explore(100)
@given(st.data(), st.integers(0, 8))
def test_streams(data: st.DataObject, n: int) -> None:
    source = data.draw(sources.stream_sources(n), label="dataset")
    expected, got = (
        [outcome(lambda d=d: len(d)), outcome(lambda d=d: list(d)), outcome(lambda d=d: d[0])]
        for d in map(source.build, LIBRARIES)
    )
    assert got == expected


@explore(150)
@given(
    st.integers(0, 30),
    st.lists(st.integers(0, 12), max_size=4)
    | st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.9, 1.0]), max_size=4),
    st.booleans(),
)
def test_random_split(n: int, lengths: list[float], with_generator: bool) -> None:
    def split(library: ModuleType) -> Any:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2)
        options = {"generator": generator} if with_generator else {}

        def parts() -> Any:
            return [list(part.indices) for part in library.random_split(range(n), lengths, **options)]

        return outcome(parts), torch.get_rng_state().tolist(), generator.get_state().tolist()

    assert split(headrace) == split(torch_data)


def test_random_split_takes_none_for_a_generator() -> None:
    torch.manual_seed(0)
    expected = [part.indices for part in torch_data.random_split(range(9), [4, 5], None)]
    torch.manual_seed(0)
    assert [part.indices for part in headrace.random_split(range(9), [4, 5], None)] == expected


class Noisy(torch_data.Dataset):
    """A random number with every sample."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __getitem__(self, index: int) -> Any:
        return self.start + index, torch.rand(())

    def __len__(self) -> int:
        return 4


def test_concatenated_samples_are_asked_for_in_their_order() -> None:
    def batches(library: ModuleType) -> Any:
        torch.manual_seed(0)
        data = library.ConcatDataset([Noisy(0), Noisy(10), Noisy(20)])
        return fingerprint(list(library.DataLoader(data, 5, shuffle=True)))

    assert batches(headrace) == batches(torch_data)


@pytest.mark.parametrize("index", [-9, -8, -1, 0, 3, 4, 7, 8, np.int64(5), True, 2.0, "a", None, [0, 1], slice(2)])
def test_odd_indices(index: Any) -> None:
    rows = torch.arange(8)

    def make(library: ModuleType) -> list[Any]:
        tensors = library.TensorDataset(rows, rows)
        return [
            tensors,
            library.Subset(tensors, range(8)),
            library.ConcatDataset([list(range(4)), list(range(4, 8))]),
            library.StackDataset(a=list(range(8)), b=rows),
        ]

    for theirs, ours in zip(make(torch_data), make(headrace), strict=True):
        assert outcome(lambda d=ours: d[index]) == outcome(lambda d=theirs: d[index])


def test_plus() -> None:
    class Stream(headrace.IterableDataset):
        def __iter__(self) -> Any:
            return iter([1, 2])

    class TorchStream(torch_data.IterableDataset):
        def __iter__(self) -> Any:
            return iter([3])

    ours, theirs = headrace.TensorDataset(torch.arange(2)), torch_data.TensorDataset(torch.arange(2, 5))
    assert [item[0].item() for item in map((ours + theirs).__getitem__, range(5))] == [0, 1, 2, 3, 4]
    assert [item[0].item() for item in map((theirs + ours).__getitem__, range(5))] == [2, 3, 4, 0, 1]
    assert list(Stream() + TorchStream()) == [1, 2, 3]
    assert list(TorchStream() + Stream()) == [3, 1, 2]


def test_cumsum_and_attributes() -> None:
    parts = [range(3), range(4)]
    for library in LIBRARIES:
        data = library.ConcatDataset(iter(parts))
        assert data.cumulative_sizes == library.ConcatDataset.cumsum(parts) == [3, 7]
        assert data.datasets == parts


def make_datasets(library: ModuleType) -> list[Any]:
    tensors = library.TensorDataset(torch.arange(4), torch.ones(4, 2))
    return [
        tensors,
        library.Subset(tensors, [3, 1]),
        library.ConcatDataset([tensors, tensors]),
        library.StackDataset(tensors, range(4)),
        library.StackDataset(a=tensors),
    ]


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))])
def test_copies(twin: Any) -> None:
    for ours in make_datasets(headrace):
        copied = twin(ours)
        assert type(copied) is type(ours)
        assert fingerprint([copied[i] for i in range(len(ours))]) == fingerprint([ours[i] for i in range(len(ours))])


def test_abstract_methods() -> None:
    for library in LIBRARIES:
        with pytest.raises(NotImplementedError):
            library.Dataset()[0]
        assert outcome(lambda library=library: len(library.Dataset())) == ("raised", TypeError, ())
        assert library.Dataset[int] is not None
        assert library.IterableDataset[int] is not None
        assert not hasattr(library.Dataset(), "__getitems__")
