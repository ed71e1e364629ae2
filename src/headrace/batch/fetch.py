"""Gets the samples of a task and makes them a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.base.indices import as_index_array
from headrace.base.messages import PackedIndices, Pull


class EndOfStream(Exception):  # noqa: N818 (it is no error, like StopIteration)
    """An iterable dataset has no further batch."""


class MapFetcher:
    """Fetches from a dataset by key.

    Args:
        batched: whether keys come as batches; else each key is one sample, which `collate` gets by itself.
        take: fetches a whole batch at once, if given; for integer keys only.
    """

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], *, batched: bool, take: Callable[[Any], Any] | None = None
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batched = batched
        self._take = take

    def fetch(self, keys: Any) -> Any:
        """The batch of these keys."""
        if not self._batched:
            return self._collate(self._dataset[keys])
        packed = isinstance(keys, PackedIndices)
        if self._take is not None:
            indices = keys.array if packed else as_index_array(keys)
            if indices is not None and len(indices):
                return self._take(indices)
        return self._collate(self._get_samples(keys.array.tolist() if packed else keys))

    def _get_samples(self, keys: Any) -> Any:
        dataset = self._dataset
        get_items = getattr(dataset, "__getitems__", None)
        if get_items:
            return get_items(keys)
        return [dataset[key] for key in keys]


class IterableFetcher:
    """Fetches from the one iteration over a dataset that it starts.

    Args:
        drop_last: leave out a last batch that is not full.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], *, drop_last: bool) -> None:
        self._samples = iter(dataset)
        self._collate = collate
        self._drop_last = drop_last
        self._ended = False

    def fetch(self, keys: Pull) -> Any:
        """The next batch.

        Raises:
            EndOfStream: there is none.
        """
        if keys.count is None:
            try:
                sample = next(self._samples)
            except StopIteration:
                raise EndOfStream from None
            return self._collate(sample)
        if self._ended:
            raise EndOfStream
        batch = []
        for _ in range(keys.count):
            try:
                batch.append(next(self._samples))
            except StopIteration:
                self._ended = True
                break
        if not batch or (self._ended and self._drop_last):
            raise EndOfStream
        return self._collate(batch)
