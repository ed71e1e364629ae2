"""Cuts the indices of a sampler into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from headrace.base.indices import Indices
from headrace.base.user_classes import adopted, stands_in
from headrace.order.samplers import ChunkedSampler, Sampler


@adopted("torch.utils.data.sampler")
class BatchSampler(Sampler[list[Any]]):
    """Lists of `batch_size` indices from a sampler or any other iterable.

    Guarantees: draws from the sampler no further than the batch at hand needs.

    Raises:
        ValueError: `batch_size` is not a positive int, or `drop_last` is not a bool.

    Examples:
        >>> list(BatchSampler(range(7), batch_size=3, drop_last=False))
        [[0, 1, 2], [3, 4, 5], [6]]
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size!r}.")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last!r}.")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        keys = iter(self.sampler)
        while batch := list(islice(keys, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def packed(self) -> Iterator[Indices] | None:
        """The batches of `__iter__` as arrays, or None if the sampler gives single keys only."""
        sampler = self.sampler
        if not isinstance(sampler, ChunkedSampler) or not stands_in(type(sampler), "chunks", "__iter__"):
            return None
        return self._cut(sampler.chunks())

    def _cut(self, chunks: Iterator[Indices]) -> Iterator[Indices]:
        size = self.batch_size
        rest = np.empty(0, dtype=np.int64)
        for chunk in chunks:
            if len(rest):
                chunk = np.concatenate([rest, chunk])
            end = len(chunk) - len(chunk) % size
            for start in range(0, end, size):
                yield chunk[start : start + size]
            rest = chunk[end:]
        if len(rest) and not self.drop_last:
            yield rest

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
