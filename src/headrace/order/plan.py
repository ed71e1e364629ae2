"""The keys of an epoch's batches, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.base.messages import PackedIndices
from headrace.base.overrides import stands_in
from headrace.order.batch_order_sampler import BatchOrderSampler
from headrace.order.batch_sampler import BatchSampler
from headrace.order.distributed import DistributedSampler
from headrace.order.samplers import RandomSampler, SequentialSampler, WeightedRandomSampler


def plan_keys(index_sampler: Iterable[Any]) -> Iterator[Any]:
    """What a sampler or batch sampler yields, packed into arrays where it is headrace's own.

    Guarantees: a user's `__iter__` is called now, everything else as late as torch would.
    """
    if isinstance(index_sampler, (BatchSampler, BatchOrderSampler)) and stands_in(
        type(index_sampler), "packed", "__iter__"
    ):
        packed = index_sampler.packed()
        if packed is not None:
            return map(PackedIndices, packed)
    return iter(index_sampler)


def is_settled(index_sampler: Any) -> bool:
    """Whether all keys of an epoch are settled as soon as the first is drawn: nobody sees how early the others are."""
    if type(index_sampler) is not BatchSampler:
        return False
    sampler = index_sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    return type(sampler) in (SequentialSampler, WeightedRandomSampler, DistributedSampler)
