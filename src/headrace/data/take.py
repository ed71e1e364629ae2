"""Whole batches from datasets that can gather rows, without touching single samples.

`find_take` knows arrays and tensors, headrace's and torch's `TensorDataset`, `Subset` and `StackDataset` of those, and
every headrace `Dataset` with a method `take(self, indices)`, which gets an int64 array and returns the batch: arrays
with a first dimension of `len(indices)`, alone or in dicts, lists and tuples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from headrace.base.containers import map_leaves
from headrace.base.indices import Indices, as_index_array
from headrace.base.user_classes import stands_in
from headrace.data.dataset import Dataset, known_kind
from headrace.frameworks.framework import Framework, gather_of

Take: TypeAlias = Callable[[Indices], Any]


def find_take(dataset: Any, framework: Framework, convert: Callable[[Any], Any]) -> Take | None:
    """A function that returns the batch at some indices, or None if samples must be fetched one by one.

    Guarantees: the batch equals the default collation of the samples `dataset[i]`.

    Args:
        framework: whose arrays the batch is made of.
        convert: turns the arrays in a batch of a user's own `take` into the framework's.
    """
    if isinstance(dataset, Dataset) and _offers_take(type(dataset)):
        take = _checked(dataset)
        return lambda indices: convert(take(indices))
    match known_kind(dataset):
        case "TensorDataset":
            return _side_by_side([gather_of(tensor, framework) for tensor in dataset.tensors])
        case "Subset":
            return _chosen(dataset.indices, find_take(dataset.dataset, framework, convert))
        case "StackDataset" if isinstance(dataset.datasets, dict):
            return _named({name: find_take(part, framework, convert) for name, part in dataset.datasets.items()})
        case "StackDataset":
            return _side_by_side([find_take(part, framework, convert) for part in dataset.datasets])
        case _:
            return gather_of(dataset, framework)


def takes_by_user_code(dataset: Any) -> bool:
    """Whether the function that `find_take` found calls a `take` that a user wrote."""
    if isinstance(dataset, Dataset) and _offers_take(type(dataset)):
        return not str(getattr(dataset, "take").__module__).startswith("headrace.")  # noqa: B009 (a user's method)
    match known_kind(dataset):
        case "Subset":
            return takes_by_user_code(dataset.dataset)
        case "StackDataset":
            parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
            return any(takes_by_user_code(part) for part in parts)
        case _:
            return False


_offers: dict[type, bool] = {}


def _offers_take(cls: type) -> bool:
    """Whether the class has a `take(self, indices)`, by that name, not older than its `__getitem__`."""
    if cls not in _offers:
        take = getattr(cls, "take", None)
        stands = callable(take) and stands_in(cls, "take", "__getitem__", "__getitems__")
        _offers[cls] = stands and _takes_indices(take)
    return _offers[cls]


def _takes_indices(method: Any) -> bool:
    parameters = list(inspect.signature(method).parameters.values())
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
        map_leaves(partial(_check_rows, n=len(indices)), batch)
        return batch

    return take


def _check_rows(leaf: Any, n: int) -> None:
    rows = getattr(leaf, "shape", (n,))[:1]
    if tuple(rows) != (n,):
        raise ValueError(f"take(indices) should return one row for each of {n} indices, got an array of {leaf.shape}.")


def _side_by_side(takes: list[Take | None]) -> Take | None:
    found = [take for take in takes if take is not None]
    return (lambda indices: [take(indices) for take in found]) if len(found) == len(takes) else None


def _named(takes: dict[str, Take | None]) -> Take | None:
    found = {name: take for name, take in takes.items() if take is not None}
    return (lambda indices: {name: take(indices) for name, take in found.items()}) if len(found) == len(takes) else None


def _chosen(rows: Any, take: Take | None) -> Take | None:
    chosen = None if take is None else as_index_array(rows)
    if take is None or chosen is None:
        return None
    return lambda indices: take(chosen.take(indices))
