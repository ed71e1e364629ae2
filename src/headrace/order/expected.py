"""What all ranks together are to get in an epoch, by arithmetic alone: nothing is loaded, and nothing dealt out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from headrace.base.indices import Indices
from headrace.order.order import BatchOrder, Order

_CHUNK = 2**14  # keys at a time


class ExpectedKeys(Protocol):
    """The keys of one epoch, in any order, as arrays or lists of some at a time."""

    def whole(self) -> Iterable[Any]:
        """From its beginning to its end."""
        ...

    def rest(self) -> Iterable[Any] | None:
        """From where it was gone on with; None if that is not known."""
        ...

    @property
    def is_guess(self) -> bool:
        """Whether `whole` holds only if all parts of the epoch ran on as many ranks."""
        ...

    def n_dropped(self) -> int:
        """How many samples no rank gets, to make batches full and ranks even."""
        ...

    def n_doubled(self) -> int:
        """How many come a second time, to make ranks even."""
        ...


@dataclass(frozen=True)
class KnownKeys:
    """Keys that are known beforehand, though not their order.

    Args:
        keys: may be iterated several times.
        starts: whether the epoch begins at its beginning.
    """

    keys: Iterable[Any]
    starts: bool
    is_guess = False

    def whole(self) -> Iterator[Any]:
        keys = self.keys
        if isinstance(keys, (range, np.ndarray)):
            yield from (keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK))
            return
        remaining = iter(keys)
        while chunk := list(islice(remaining, _CHUNK)):
            yield chunk

    def rest(self) -> Iterator[Any] | None:
        return self.whole() if self.starts else None

    def n_dropped(self) -> int:
        return 0

    def n_doubled(self) -> int:
        return 0


@dataclass(frozen=True)
class DealtOrder:
    """The keys of an order that is dealt to ranks from a position on.

    Args:
        shares: how many items each rank gets: samples, or batches of a `BatchOrder`.
        has_gaps: whether some of what follows the position was given before.
    """

    order: Order | BatchOrder
    position: int
    shares: tuple[int, ...]
    has_gaps: bool = False
    is_guess: bool = False

    def whole(self) -> Iterator[Indices]:
        yield from self._between(0, self.position)
        yield from self._dealt()

    def rest(self) -> Iterator[Indices] | None:
        return None if self.has_gaps else self._dealt()

    def _dealt(self) -> Iterator[Indices]:
        world, all_have = len(self.shares), min(self.shares)
        yield from self._between(self.position, self.position + all_have * world)
        for rank, share in enumerate(self.shares):
            yield self._at(self.position + rank + world * np.arange(all_have, share, dtype=np.int64))

    def n_dropped(self) -> int:
        world = len(self.shares)
        return sum(
            len(self._at(np.arange(self.position + rank + world * share, len(self.order), world, dtype=np.int64)))
            for rank, share in enumerate(self.shares)
        )

    def n_doubled(self) -> int:
        end = self.position + sum(self.shares)
        return sum(map(len, self._between(max(self.position, len(self.order)), end)))

    def _between(self, start: int, end: int) -> Iterator[Indices]:
        for first in range(start, end, _CHUNK):
            yield self._at(np.arange(first, min(first + _CHUNK, end), dtype=np.int64))

    def _at(self, positions: Indices) -> Indices:
        """The keys at positions, which go round again where they lie past the end."""
        if not len(positions):
            return positions
        positions = positions % len(self.order)
        order: Any = self.order
        if not hasattr(order, "batch"):
            keys: Indices = order.at(positions)
            return keys
        return np.concatenate([order.batch(number) for number in positions.tolist()])


def settled_keys(index_sampler: Any) -> Any:
    """The keys of torch's or headrace's own samplers whose draws decide nothing but the order; None for others."""
    if not _is_known(index_sampler):
        return None
    match type(index_sampler).__name__:
        case "BatchSampler":
            keys = settled_keys(index_sampler.sampler)
            is_cut = index_sampler.drop_last and keys is not None and len(keys) % index_sampler.batch_size
            return None if is_cut else keys
        case "SequentialSampler":
            return range(len(index_sampler.data_source))
        case "RandomSampler" if not index_sampler.replacement:
            n = len(index_sampler.data_source)
            return range(n) if index_sampler.num_samples == n else None
        case "SubsetRandomSampler":
            return list(index_sampler.indices)
        case _:
            return None


def _is_known(sampler: Any) -> bool:
    return type(sampler).__module__ in (
        "headrace.order.samplers",
        "headrace.order.batch_sampler",
        "torch.utils.data.sampler",
    )
