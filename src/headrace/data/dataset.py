"""Datasets: by key or iterable, over arrays, and made of other datasets."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeVar

from headrace.base.errors import warn_user
from headrace.base.optional import loaded
from headrace.base.user_classes import Adoptable, adopt, in_short
from headrace.frameworks.framework import random_source

T_co = TypeVar("T_co", covariant=True)


class SupportsGetItem(Protocol[T_co]):
    """Anything that gives a sample for a key: a dataset by key need not be a `Dataset`."""

    def __getitem__(self, index: Any, /) -> T_co: ...


_MOST_SHOWN = 4  # datasets


def _more(datasets: Sequence[Any]) -> str:
    return f", … {len(datasets)} datasets" if len(datasets) > _MOST_SHOWN else ""


class Dataset(Adoptable[T_co]):
    """A dataset by key. Subclasses write `__getitem__`, and mostly `__len__`.

    Two methods make loading faster where a subclass can offer them: `__getitems__(indices)`, a list of samples at once,
    and `take(indices)`, a whole batch as arrays (see `headrace.data.take`).

    An instance is a `torch.utils.data.Dataset` too, once torch is imported.
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must implement __getitem__.")

    def __add__(self, other: Any) -> ConcatDataset[Any] | ChainDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co], Iterable[T_co]):
    """A dataset that is iterated over, sample by sample. Subclasses write `__iter__`.

    An instance is a `torch.utils.data.IterableDataset` too, once torch is imported.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must implement __iter__.")

    def __add__(self, other: Any) -> ChainDataset:
        return ChainDataset([self, other])


adopt(Dataset, "torch.utils.data.dataset", "Dataset")
adopt(IterableDataset, "torch.utils.data.dataset", "IterableDataset")


def is_datapipe(dataset: object) -> bool:
    """Whether `dataset` is one of torch's DataPipes, which want to be seeded before each epoch."""
    pipes = loaded("torch.utils.data.datapipes.datapipe")
    return pipes is not None and isinstance(dataset, (pipes.IterDataPipe, pipes.MapDataPipe))


def is_iterable_dataset(dataset: object) -> bool:
    """Whether `dataset` is iterated over: headrace's or torch's `IterableDataset`. Other iterables are not."""
    if isinstance(dataset, IterableDataset):
        return True
    torch_data = loaded("torch.utils.data")
    return torch_data is not None and isinstance(dataset, torch_data.IterableDataset)


class TensorDataset(Dataset[tuple[Any, ...]]):
    """Rows of torch tensors or NumPy arrays that share their first dimension; sample i is the tuple of the i-th rows.

    Raises:
        AssertionError: the first dimensions differ.

    Examples:
        >>> import numpy as np
        >>> TensorDataset(np.arange(3), np.array([1.0, 2.0, 3.0]))[1]
        (np.int64(1), np.float64(2.0))
    """

    def __init__(self, *tensors: Any) -> None:
        sizes = [tensor.shape[0] for tensor in tensors]
        if any(size != sizes[0] for size in sizes):
            raise AssertionError(f"Size mismatch between tensors: their first dimensions are {sizes}.")
        self.tensors = tensors

    def __repr__(self) -> str:
        shapes = ", ".join(f"{type(one).__name__}{list(getattr(one, 'shape', [len(one)]))}" for one in self.tensors)
        return f"TensorDataset({shapes})"

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


def known_kind(dataset: Any) -> str:
    """The name of a class of headrace's or torch's, "" if it is none. A subclass may have changed anything."""
    cls = type(dataset)
    is_known = cls in (TensorDataset, StackDataset, ConcatDataset, Subset) or cls.__module__ == _TORCH_DATASETS
    return cls.__name__ if is_known else ""


_TORCH_DATASETS = "torch.utils.data.dataset"


def _fetches_batches(dataset: Any) -> bool:
    """Whether there is a `__getitems__` of a user's at the bottom of these combinations."""
    match known_kind(dataset):
        case "Subset":
            return _fetches_batches(dataset.dataset)
        case "StackDataset" | "ConcatDataset":
            parts = dataset.datasets
            return any(map(_fetches_batches, parts.values() if isinstance(parts, dict) else parts))
        case _:
            return callable(getattr(dataset, "__getitems__", None))


def get_items(dataset: Any, indices: Sequence[Any]) -> Sequence[Any]:
    """The samples at `indices`, by one `__getitems__` call where the dataset has it."""
    if callable(getattr(dataset, "__getitems__", None)):
        return dataset.__getitems__(indices)  # type: ignore[no-any-return]
    return [dataset[i] for i in indices]


class StackDataset(Dataset[Any]):
    """Datasets of one length side by side: samples are tuples (positional arguments) or dicts (named arguments).

    Raises:
        ValueError: no dataset, both kinds of argument, or different lengths.

    Examples:
        >>> StackDataset(image=["a", "b"], label=[0, 1])[1]
        {'image': 'b', 'label': 1}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError("Datasets should be passed either by position or by name, but got both.")
        if not args and not kwargs:
            raise ValueError("At least one dataset should be passed.")
        self.datasets: tuple[Any, ...] | dict[str, Any] = args or kwargs
        lengths = [len(dataset) for dataset in args or kwargs.values()]
        if any(length != lengths[0] for length in lengths):
            raise ValueError(f"Size mismatch between datasets: their lengths are {lengths}.")
        self._length = lengths[0]

    def __repr__(self) -> str:
        parts: Any = self.datasets
        named = parts.items() if isinstance(parts, dict) else ((None, part) for part in parts)
        shown = ", ".join(in_short(part) if name is None else f"{name}={in_short(part)}" for name, part in named)
        return f"StackDataset({shown})"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        if type(self).__getitem__ is not StackDataset.__getitem__:
            return [self[i] for i in indices]
        if isinstance(self.datasets, dict):
            columns = [_get_all(dataset, indices) for dataset in self.datasets.values()]
            return [dict(zip(self.datasets, row, strict=True)) for row in zip(*columns, strict=True)]
        return list(zip(*(_get_all(dataset, indices) for dataset in self.datasets), strict=True))

    def __len__(self) -> int:
        return self._length


def _get_all(dataset: Any, indices: Sequence[Any]) -> Sequence[Any]:
    items = get_items(dataset, indices)
    if len(items) != len(indices):
        raise ValueError(
            f"Nested dataset's output size mismatch: __getitems__ of {type(dataset).__name__} should return "
            f"{len(indices)} samples, but returned {len(items)}."
        )
    return items


class ConcatDataset(Dataset[T_co]):
    """Datasets one after the other.

    Raises:
        AssertionError: there is none, or one is iterable (chain those with `ChainDataset`).
    """

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """Where each dataset ends in the whole."""
        return list(accumulate(len(dataset) for dataset in sequence))

    def __init__(self, datasets: Iterable[SupportsGetItem[T_co]]) -> None:
        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable.")
        if any(is_iterable_dataset(dataset) for dataset in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset. Use ChainDataset.")
        self.cumulative_sizes = self.cumsum(self.datasets)

    def __repr__(self) -> str:
        return f"ConcatDataset([{', '.join(map(in_short, self.datasets[:_MOST_SHOWN]))}{_more(self.datasets)}])"

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: Any) -> T_co:
        part, i = self._locate(idx)
        return self.datasets[part][i]  # type: ignore[no-any-return]

    def __getitems__(self, indices: Sequence[Any]) -> list[T_co]:
        overridden = type(self).__getitem__ is not ConcatDataset.__getitem__
        # Part by part only where that saves calls: random numbers are drawn in the order of the samples, as by torch.
        if overridden or not any(map(_fetches_batches, self.datasets)):
            return [self[i] for i in indices]
        places = [self._locate(i) for i in indices]
        samples: list[Any] = [None] * len(places)
        for part in dict.fromkeys(part for part, _ in places):
            slots = [slot for slot, (owner, _) in enumerate(places) if owner == part]
            found = _get_all(self.datasets[part], [places[slot][1] for slot in slots])
            for slot, sample in zip(slots, found, strict=True):
                samples[slot] = sample
        return samples

    def _locate(self, idx: Any) -> tuple[int, Any]:
        """The dataset that holds index `idx`, and the index in it."""
        if idx < 0:
            if -idx > len(self):
                raise ValueError(f"absolute value of index should not exceed dataset length {len(self)}, got {idx}.")
            idx = len(self) + idx
        part = bisect_right(self.cumulative_sizes, idx)
        return part, idx - (self.cumulative_sizes[part - 1] if part else 0)


class ChainDataset(IterableDataset[Any]):
    """Iterable datasets one after the other; each is checked when its turn comes.

    Raises:
        AssertionError: while iterating, or in `len`: one of them is not an `IterableDataset`.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            yield from _checked_iterable(dataset)

    def __len__(self) -> int:
        return sum(len(_checked_iterable(dataset)) for dataset in self.datasets)


def _checked_iterable(dataset: Any) -> Any:
    if not is_iterable_dataset(dataset):
        raise AssertionError(
            f"ChainDataset only supports IterableDataset, got {type(dataset).__name__}. Use ConcatDataset."
        )
    return dataset


class Subset(Dataset[T_co]):
    """The samples of a dataset at the given indices.

    Raises:
        NotImplementedError: a subclass overrides `__getitem__` but not `__getitems__`, which would pass it by.
    """

    def __init__(self, dataset: SupportsGetItem[T_co], indices: Sequence[Any]) -> None:
        own = type(self)
        if own.__getitem__ is not Subset.__getitem__ and own.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(
                f"{own.__name__} overrides __getitem__ but not __getitems__, which loads whole batches. Add to it:\n"
                "    def __getitems__(self, indices):\n        return [self[i] for i in indices]"
            )
        self.dataset: Any = dataset
        self.indices = indices

    def __repr__(self) -> str:
        return f"Subset({in_short(self.dataset)}, {len(self.indices):,} indices)"

    def __getitem__(self, idx: Any) -> T_co:
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]  # type: ignore[no-any-return]
        return self.dataset[self.indices[idx]]  # type: ignore[no-any-return]

    def __getitems__(self, indices: Sequence[Any]) -> Sequence[T_co]:
        return get_items(self.dataset, [self.indices[i] for i in indices])

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Any = None, *, library: str = "auto"
) -> list[Subset[Any]]:
    """Split a dataset into random parts that do not overlap.

    Args:
        lengths: the number of samples in each part, or fractions that sum to 1 (what rounding leaves over is dealt one
            by one from the first part on).
        generator: a torch or NumPy generator to draw from; the global one if None.
        library: whose global generator that is: "torch", "numpy", or "auto" for torch if it is installed.

    Raises:
        ValueError: a fraction lies outside [0, 1], or the lengths do not sum to the dataset's.

    Examples:
        >>> [len(part) for part in random_split(range(10), [0.7, 0.3])]
        [7, 3]
    """
    n = len(dataset)
    total = sum(lengths)
    sizes: Sequence[Any] = lengths
    if math.isclose(total, 1) and total <= 1:
        sizes = _sizes_of_fractions(lengths, n)
    if sum(sizes) != n:
        raise ValueError(
            f"Sum of input lengths does not equal the length of the input dataset: {list(sizes)} sum to {sum(sizes)}, "
            f"the dataset has {n} samples."
        )
    order = random_source(generator, library).permutation(sum(sizes)).tolist()
    ends = list(accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _sizes_of_fractions(fractions: Sequence[float], n: int) -> list[int]:
    for i, fraction in enumerate(fractions):
        if not 0 <= fraction <= 1:
            raise ValueError(f"Fraction at index {i} is not between 0 and 1, got {fraction}.")
    sizes = [math.floor(n * fraction) for fraction in fractions]
    for i in range(n - sum(sizes)):
        sizes[i % len(sizes)] += 1
    for i, size in enumerate(sizes):
        if size == 0:
            warn_user(f"Length of split at index {i} is 0. This might result in an empty dataset.")
    return sizes
