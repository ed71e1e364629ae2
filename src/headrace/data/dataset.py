"""The two kinds of dataset: by key, and as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.base.optional import loaded
from headrace.base.torch_identity import Adoptable, adopt

if TYPE_CHECKING:
    from headrace.data.combine import ChainDataset, ConcatDataset

T_co = TypeVar("T_co", covariant=True)


class SupportsGetItem(Protocol[T_co]):
    """Anything that gives a sample for a key: a dataset by key need not be a `Dataset`."""

    def __getitem__(self, index: Any, /) -> T_co: ...


class Dataset(Adoptable[T_co]):
    """A dataset by key. Subclasses write `__getitem__`, and mostly `__len__`.

    Two methods make loading faster where a subclass can offer them: `__getitems__(indices)`, a list of samples at once,
    and `take(indices)`, a whole batch as arrays (see `headrace.data.take`).

    An instance is a `torch.utils.data.Dataset` too, once torch is imported.
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must implement __getitem__.")

    def __add__(self, other: Any) -> ConcatDataset[Any] | ChainDataset:
        from headrace.data.combine import ConcatDataset

        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co], Iterable[T_co]):
    """A dataset that is a stream of samples. Subclasses write `__iter__`.

    An instance is a `torch.utils.data.IterableDataset` too, once torch is imported.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must implement __iter__.")

    def __add__(self, other: Any) -> ChainDataset:
        from headrace.data.combine import ChainDataset

        return ChainDataset([self, other])


adopt(Dataset, "torch.utils.data.dataset", "Dataset")
adopt(IterableDataset, "torch.utils.data.dataset", "IterableDataset")


def is_datapipe(dataset: object) -> bool:
    """Whether `dataset` is one of torch's DataPipes, which want to be seeded before each epoch."""
    pipes = loaded("torch.utils.data.datapipes.datapipe")
    return pipes is not None and isinstance(dataset, (pipes.IterDataPipe, pipes.MapDataPipe))


def is_iterable_dataset(dataset: object) -> bool:
    """Whether `dataset` is a stream: headrace's or torch's `IterableDataset`. Other iterables are not."""
    if isinstance(dataset, IterableDataset):
        return True
    torch_data = loaded("torch.utils.data")
    return torch_data is not None and isinstance(dataset, torch_data.IterableDataset)
