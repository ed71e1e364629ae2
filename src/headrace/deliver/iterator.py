"""What `iter(loader)` returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class PromisedLength:
    """What `len(loader)` said of an iterable dataset."""

    dataset: Any
    samples: int


class LoaderIterator:
    """The batches of one epoch.

    Args:
        batches: where they come from.
        index_sampler: what `len` of the iterator is the length of.
        finish: applied to each batch at last, e.g. to pin its memory.
        promise: the length that an iterable dataset was asked for, to warn if it yields more.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        index_sampler: Any,
        finish: Callable[[Any], Any] | None,
        promise: PromisedLength | None,
    ) -> None:
        self._batches = batches
        self._index_sampler: Sized = index_sampler
        self._finish = finish
        self._promise = promise
        self._delivered = 0

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self._finish is not None:
            batch = self._finish(batch)
        self._delivered += 1
        if self._promise is not None and self._delivered > self._promise.samples:
            self._warn_of_length(self._promise)
        return batch

    def _warn_of_length(self, promise: PromisedLength) -> None:
        warnings.warn(
            f"Length of IterableDataset {promise.dataset} was reported to be {promise.samples} (when accessing "
            f"len(dataloader)), but {self._delivered} samples have been fetched.",
            stacklevel=3,
        )

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled; pickle the loader.")
