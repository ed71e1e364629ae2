"""The samplers of loaders whose order a seed decides: what trainers see of it, and where they say which epoch it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headrace.base.indices import Indices
from headrace.order.balance import Balance
from headrace.order.distributed import DistributedSampler
from headrace.order.samplers import ChunkedSampler, EpochChoice, SequentialSampler
from headrace.order.shard import Shard

_CHUNK = 2**14  # positions that are looked up at a time


class SeededSampler(EpochChoice, ChunkedSampler):
    """The order of an epoch that a seed decides, of whichever epoch was chosen.

    The loader itself needs none of this: it is for trainers, which call `set_epoch`, and may put this sampler into
    another loader.

    Args:
        inner: the sampler that would draw, without a seed.
    """

    def __init__(self, inner: Any, seed: int) -> None:
        self.inner = inner
        self.data_source: Any = inner.data_source
        self.seed = seed

    def chunks(self) -> Iterator[Indices]:
        order = self.inner.seeded(self.seed, self.epoch)
        for start in range(0, len(order), _CHUNK):
            yield order.at(np.arange(start, min(start + _CHUNK, len(order)), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.inner)


class SeededSequentialSampler(SeededSampler, SequentialSampler):
    """The order of the data: trainers must see that nothing is shuffled."""

    def __iter__(self) -> Iterator[int]:
        return SequentialSampler.__iter__(self)


class RankSampler(SeededSampler, DistributedSampler):
    """One rank's part of the order of a loader with `shard`. Trainers see that it is dealt out already.

    Args:
        find_shard: tells which part; asked when it is needed, for ranks may not be known before.
        balance: deals the samples of each step by their costs.
    """

    def __init__(self, inner: Any, seed: int, find_shard: Callable[[], Shard], balance: Balance | None = None) -> None:
        SeededSampler.__init__(self, inner, seed)
        self._find_shard = find_shard
        self._balance = balance

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Which rank this is."""
        return self._find_shard().rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """How many ranks there are."""
        return self._find_shard().world

    @property
    def dataset(self) -> Any:  # type: ignore[override]
        """What the keys are of."""
        return self.data_source

    def chunks(self) -> Iterator[Indices]:
        order, shard = self.inner.seeded(self.seed, self.epoch), self._find_shard()
        if self._balance is not None:
            order = self._balance.order(order, shard)
        own = np.arange(len(self), dtype=np.int64)
        yield order.at((shard.rank + own * shard.world) % max(1, len(order)))

    def __iter__(self) -> Iterator[int]:
        return ChunkedSampler.__iter__(self)

    def __len__(self) -> int:
        return self._find_shard().size(len(self.inner))
