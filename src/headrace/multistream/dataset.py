"""A dataset of several streams side by side, that can be split over workers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle
from typing import Any, TypeVar

from headrace.data.dataset import IterableDataset

D = TypeVar("D", bound="MultiStreamDataset")


class MultiStreamDataset(IterableDataset[Any]):
    """Each step gives one item of each of `batch_size` streams, which go through all data, each in its own order.

    Subclasses may write `process_data`, which makes items of an element of `data_list`.

    Examples:
        >>> data_list = [[12, 13, 14], [27, 28], [31, 32, 33, 34]]
        >>> datasets = MultiStreamDataset.split_datasets(data_list, batch_size=4, max_workers=3)
        >>> [dataset.batch_size for dataset in datasets]
        [2, 2]
    """

    def __init__(self, data_list: Sequence[Any], batch_size: int) -> None:
        self.data_list = data_list
        self.batch_size = batch_size

    @property
    def shuffled_data_list(self) -> list[Any]:
        """The data in another order each time; with a MultiStreamDataLoader, its seed decides."""
        return random.sample(list(self.data_list), len(self.data_list))

    def process_data(self, data: Any) -> Iterable[Any]:
        """The items of one element of the data."""
        yield from data

    def get_stream(self, data_list: Sequence[Any]) -> Iterator[Any]:
        """All items, over and over."""
        return chain.from_iterable(map(self.process_data, cycle(data_list)))

    def get_streams(self) -> Iterator[tuple[Any, ...]]:
        """The streams, side by side."""
        return zip(*[self.get_stream(self.shuffled_data_list) for _ in range(self.batch_size)], strict=False)

    def __iter__(self) -> Iterator[Any]:
        return self.get_streams()

    @classmethod
    def split_datasets(cls: type[D], data_list: Sequence[Any], batch_size: int, max_workers: int) -> list[D]:
        """Datasets that make a batch together: as many as divide it, up to `max_workers`.

        Raises:
            ValueError: `max_workers` is less than 1.
        """
        if max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, got {max_workers}.")
        num_workers = next(n for n in range(max_workers, 0, -1) if batch_size % n == 0)
        return [cls(data_list, batch_size=batch_size // num_workers) for _ in range(num_workers)]
