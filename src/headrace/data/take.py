"""Whole batches from datasets that can gather rows, without touching single samples.

`find_take(dataset)` knows arrays and tensors, headrace's and torch's `TensorDataset`, `Subset` and `StackDataset` of
those, and every headrace `Dataset` with a method `take(self, indices)`, which gets an int64 array
and returns the batch: arrays with a first dimension of `len(indices)`, alone or in dicts, lists and tuples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from headrace.base.indices import as_index_array
from headrace.base.overrides import stands_in
from headrace.data.combine import known_kind
from headrace.data.dataset import Dataset
from headrace.frameworks.framework import Indices, gather_of

Take: TypeAlias = Callable[[Indices], Any]


def find_take(dataset: Any) -> Take | None:
    """A function that returns the batch at some indices, or None if samples must be fetched one by one.

    Guarantees: the batch equals the default collation of the samples `dataset[i]`.
    """
    if isinstance(dataset, Dataset) and _offers_take(type(dataset)):
        return _checked(dataset)
    match known_kind(dataset):
        case "TensorDataset":
            return _take_all([gather_of(tensor) for tensor in dataset.tensors])
        case "Subset":
            return _take_subset(dataset)
        case "StackDataset":
            return _take_stack(dataset.datasets)
        case _:
            return gather_of(dataset)


def _offers_take(cls: type) -> bool:
    """Whether the class has a `take(self, indices)`, by that name, not older than its `__getitem__`."""
    take = getattr(cls, "take", None)
    if not callable(take) or not stands_in(cls, "take", "__getitem__", "__getitems__"):
        return False
    parameters = list(inspect.signature(take).parameters.values())
    required = [p for p in parameters[1:] if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return [(p.name, p.kind) for p in required] == [("indices", inspect.Parameter.POSITIONAL_OR_KEYWORD)]


def _checked(dataset: Any) -> Take:
    def take(indices: Indices) -> Any:
        batch = dataset.take(indices)
        if batch is None or isinstance(batch, Dataset):
            raise TypeError(
                f"{type(dataset).__name__}.take(indices) should return the batch at these indices as arrays, got "
                f"{type(batch).__name__}. Rename the method if it is meant for something else."
            )
        return batch

    return take


def _take_all(takes: list[Any]) -> Take | None:
    if any(take is None for take in takes):
        return None
    return lambda indices: [take(indices) for take in takes]


def _take_subset(subset: Any) -> Take | None:
    take = find_take(subset.dataset)
    chosen = None if take is None else as_index_array(subset.indices)
    if take is None or chosen is None:
        return None
    return lambda indices: take(chosen.take(indices))


def _take_stack(datasets: Any) -> Take | None:
    if not isinstance(datasets, Mapping):
        return _take_all([find_take(dataset) for dataset in datasets])
    takes = {name: find_take(dataset) for name, dataset in datasets.items()}
    if any(take is None for take in takes.values()):
        return None
    return lambda indices: {name: take(indices) for name, take in takes.items() if take is not None}
