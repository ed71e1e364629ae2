"""Wrong arguments of samplers and datasets raise the same type of error as torch's."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.utils.data as torch_data

import headrace

from .equality import outcome
from .test_argument_errors import Lengthless, Stream


class ShortAnswer:
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [0]

    def __len__(self) -> int:
        return 2


def half_overridden(library: ModuleType) -> type:
    class Half(library.Subset):
        def __getitem__(self, index: int) -> int:
            return 0

    return Half


CONSTRUCTIONS: dict[str, Callable[[ModuleType], Any]] = {
    "RandomSampler, replacement 0": lambda lib: lib.RandomSampler([1], replacement=0),
    "RandomSampler, replacement None": lambda lib: lib.RandomSampler([1], replacement=None),
    "RandomSampler, num_samples 0": lambda lib: lib.RandomSampler([1], num_samples=0),
    "RandomSampler, num_samples -1": lambda lib: lib.RandomSampler([1], num_samples=-1),
    "RandomSampler, num_samples 2.5": lambda lib: lib.RandomSampler([1], num_samples=2.5),
    "RandomSampler, num_samples text": lambda lib: lib.RandomSampler([1], num_samples="3"),
    "RandomSampler, num_samples True": lambda lib: list(lib.RandomSampler([1], num_samples=True)),
    "RandomSampler, empty": lambda lib: lib.RandomSampler([]),
    "RandomSampler, empty, with samples": lambda lib: list(lib.RandomSampler([], num_samples=2)),
    "RandomSampler, empty, replacement": lambda lib: list(lib.RandomSampler([], True, 2)),
    "RandomSampler, no length": lambda lib: lib.RandomSampler(Lengthless()),
    "RandomSampler, generator 42": lambda lib: list(lib.RandomSampler([1], generator=42)),
    "SequentialSampler, no length": lambda lib: list(lib.SequentialSampler(Lengthless())),
    "SequentialSampler, nothing": lambda lib: lib.SequentialSampler(),
    "SubsetRandomSampler, int": lambda lib: list(lib.SubsetRandomSampler(3)),
    "SubsetRandomSampler, iterator": lambda lib: list(lib.SubsetRandomSampler(iter([1]))),
    "SubsetRandomSampler, generator 42": lambda lib: list(lib.SubsetRandomSampler([1], 42)),
    "Weighted, num_samples 0": lambda lib: lib.WeightedRandomSampler([1.0], 0),
    "Weighted, num_samples True": lambda lib: lib.WeightedRandomSampler([1.0], True),
    "Weighted, num_samples None": lambda lib: lib.WeightedRandomSampler([1.0], None),
    "Weighted, num_samples 1.5": lambda lib: lib.WeightedRandomSampler([1.0], 1.5),
    "Weighted, replacement 0": lambda lib: lib.WeightedRandomSampler([1.0], 1, 0),
    "Weighted, 2-d": lambda lib: lib.WeightedRandomSampler([[1.0]], 1),
    "Weighted, a number": lambda lib: lib.WeightedRandomSampler(1.0, 1),
    "Weighted, text": lambda lib: lib.WeightedRandomSampler("abc", 1),
    "Weighted, None": lambda lib: lib.WeightedRandomSampler(None, 1),
    "Weighted, empty": lambda lib: list(lib.WeightedRandomSampler([], 1)),
    "Weighted, negative": lambda lib: list(lib.WeightedRandomSampler([1.0, -1.0], 1)),
    "Weighted, NaN": lambda lib: list(lib.WeightedRandomSampler([float("nan")], 1)),
    "Weighted, all zero": lambda lib: list(lib.WeightedRandomSampler([0.0, 0.0], 1)),
    "Weighted, too few": lambda lib: list(lib.WeightedRandomSampler([1.0, 1.0], 3, False)),
    "Weighted, generator 42": lambda lib: list(lib.WeightedRandomSampler([1.0], 1, True, 42)),
    "BatchSampler, size 0": lambda lib: lib.BatchSampler([1], 0, False),
    "BatchSampler, size -1": lambda lib: lib.BatchSampler([1], -1, False),
    "BatchSampler, size True": lambda lib: lib.BatchSampler([1], True, False),
    "BatchSampler, size 2.0": lambda lib: lib.BatchSampler([1], 2.0, False),
    "BatchSampler, size None": lambda lib: lib.BatchSampler([1], None, False),
    "BatchSampler, drop_last 1": lambda lib: lib.BatchSampler([1], 1, 1),
    "BatchSampler, drop_last None": lambda lib: lib.BatchSampler([1], 1, None),
    "BatchSampler, no drop_last": lambda lib: lib.BatchSampler([1], 1),
    "BatchSampler, int": lambda lib: list(lib.BatchSampler(3, 1, False)),
    "BatchSampler, int, drop_last": lambda lib: list(lib.BatchSampler(3, 1, True)),
    "BatchSampler, no length": lambda lib: len(lib.BatchSampler(iter([1]), 1, False)),
    "Sampler": lambda lib: iter(lib.Sampler()),
    "Sampler, argument": lambda lib: lib.Sampler([1]),
    "Sampler, len": lambda lib: len(lib.Sampler()),
    "TensorDataset, unequal": lambda lib: lib.TensorDataset(torch.ones(2), torch.ones(3)),
    "TensorDataset, 0-d": lambda lib: lib.TensorDataset(torch.ones(())),
    "TensorDataset, lists": lambda lib: lib.TensorDataset([1, 2]),
    "TensorDataset, None": lambda lib: lib.TensorDataset(None),
    "TensorDataset, nothing": lambda lib: len(lib.TensorDataset()),
    "StackDataset, nothing": lambda lib: lib.StackDataset(),
    "StackDataset, both": lambda lib: lib.StackDataset([1], a=[1]),
    "StackDataset, unequal": lambda lib: lib.StackDataset([1], [1, 2]),
    "StackDataset, unequal names": lambda lib: lib.StackDataset(a=[1], b=[1, 2]),
    "StackDataset, no length": lambda lib: lib.StackDataset(Lengthless()),
    "StackDataset, bad __getitems__": lambda lib: lib.StackDataset(ShortAnswer()).__getitems__([0, 1]),
    "StackDataset, bad named __getitems__": lambda lib: lib.StackDataset(a=ShortAnswer()).__getitems__([0, 1]),
    "ConcatDataset, nothing": lambda lib: lib.ConcatDataset([]),
    "ConcatDataset, no argument": lambda lib: lib.ConcatDataset(),
    "ConcatDataset, int": lambda lib: lib.ConcatDataset(3),
    "ConcatDataset, stream": lambda lib: lib.ConcatDataset([[1], Stream()]),
    "ConcatDataset, no length": lambda lib: lib.ConcatDataset([Lengthless()]),
    "ConcatDataset, too low": lambda lib: lib.ConcatDataset([[1]])[-2],
    "ConcatDataset, too high": lambda lib: lib.ConcatDataset([[1]])[1],
    "ChainDataset, int": lambda lib: list(lib.ChainDataset(3)),
    "ChainDataset, built of a list": lambda lib: [] if lib.ChainDataset([[1]]) else None,
    "ChainDataset, list": lambda lib: list(lib.ChainDataset([[1]])),
    "ChainDataset, list, len": lambda lib: len(lib.ChainDataset([[1]])),
    "ChainDataset, no length": lambda lib: len(lib.ChainDataset([Stream()])),
    "Subset, index error": lambda lib: lib.Subset([1], [5])[0],
    "Subset, outside": lambda lib: lib.Subset([1], [0])[1],
    "Subset, no indices": lambda lib: lib.Subset([1]),
    "Subset, indices int": lambda lib: len(lib.Subset([1], 3)),
    "Subset, half overridden": lambda lib: half_overridden(lib)([1], [0]),
    "Dataset, index": lambda lib: lib.Dataset()[0],
    "IterableDataset, index": lambda lib: Stream()[0],
    "random_split, wrong sum": lambda lib: lib.random_split(range(3), [1, 1]),
    "random_split, wrong fractions": lambda lib: lib.random_split(range(3), [0.5, 0.6]),
    "random_split, negative fraction": lambda lib: lib.random_split(range(3), [-0.5, 1.5]),
    "random_split, whole floats": lambda lib: lib.random_split(range(3), [1.0, 2.0]),
    "random_split, int": lambda lib: lib.random_split(range(3), 3),
    "random_split, text": lambda lib: lib.random_split(range(3), "12"),
    "random_split, no length": lambda lib: lib.random_split(Lengthless(), [1, 2]),
    "random_split, no length, fractions": lambda lib: lib.random_split(Lengthless(), [0.5, 0.5]),
    "random_split, generator 42": lambda lib: lib.random_split(range(3), [1, 2], generator=42),
}


@pytest.mark.parametrize("construct", CONSTRUCTIONS.values(), ids=CONSTRUCTIONS.keys())
def test_samplers_and_datasets(construct: Callable[[ModuleType], Any]) -> None:
    def shown(library: ModuleType) -> Any:
        seen = outcome(lambda: construct(library))
        return seen if seen[0] == "raised" else seen[0]

    assert shown(headrace) == shown(torch_data)


@pytest.mark.parametrize(
    "options",
    [{"rank": 2}, {"rank": -1}, {"rank": None}, {"num_replicas": None}, {"num_replicas": 0}, {"rank": "0"},
     {"num_replicas": "2"}, {"dataset": Lengthless()}, {"seed": "x"}],
    ids=str,
)  # fmt: skip
def test_distributed_sampler(options: dict[str, Any]) -> None:
    arguments = {"dataset": range(5), "num_replicas": 2, "rank": 0, **options}
    classes = torch_data.distributed.DistributedSampler, headrace.DistributedSampler
    theirs, ours = (outcome(lambda cls=cls: list(cls(**arguments))) for cls in classes)
    assert ours == theirs
    assert ours[0] == "raised"
