"""Deals the samples of each step of all ranks by their costs, so that no rank has much more to do than another."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from headrace.base.indices import Indices
from headrace.order.order import Order
from headrace.order.shard import Shard

Costs: TypeAlias = "Sequence[float] | Callable[[int], float]"
"""What each sample costs, by its index: its length, its number of tokens."""

_AT_ONCE = 2**14  # samples of all ranks that are dealt at a time


@dataclass(frozen=True)
class Balance:
    """How costs are made even over ranks.

    Attributes:
        batch_size: of each rank.
    """

    costs: Costs
    batch_size: int

    def order(self, order: Order, shard: Shard, position: int = 0) -> BalancedOrder:
        """The same samples, such that every `world`-th one, from a position on, is a rank's fair part of each step."""
        return BalancedOrder(order, self, shard, position)


class BalancedOrder:
    """An order with the samples of each step of all ranks in another order.

    Guarantees: a function of the order, the costs, the position that it begins with, the batch size and the number of
    ranks. The samples of a step are those of the plain order: so what all ranks have had after a step, and what is left
    for any number of ranks, is the same.
    """

    def __init__(self, order: Order, balance: Balance, shard: Shard, position: int) -> None:
        self._order = order
        self._balance = balance
        self._shard = shard
        self._begin = position
        self._step = shard.world * balance.batch_size
        self.at_once = max(1, _AT_ONCE // shard.world)

    def __len__(self) -> int:
        return len(self._order)

    def at(self, positions: Indices) -> Indices:
        """The indices at these positions. Those before the beginning are as they were."""
        steps = np.where(positions < self._begin, -1, (positions - self._begin) // self._step)
        found = np.empty(len(positions), dtype=np.int64)
        for number in np.unique(steps).tolist():
            wanted = steps == number
            if number < 0:
                found[wanted] = self._order.at(positions[wanted])
            else:
                first = self._begin + number * self._step
                found[wanted] = self._dealt(number, first)[positions[wanted] - first]
        return found

    def _dealt(self, number: int, first: int) -> Indices:
        """The indices of one step."""
        world = self._shard.world
        indices = self._order.at(np.arange(first, min(first + self._step, len(self)), dtype=np.int64))
        n = len(indices)
        if self._shard.even == "drop":
            n -= n % world  # the last few come to nobody, and stay where they are
        room = [len(range(rank, n, world)) for rank in range(world)]
        dealt: Indices = indices.copy()
        for rank, own in enumerate(deal_by_cost(self._costs_of(indices[:n]), room, first=number % world)):
            dealt[rank:n:world] = indices[own]
        return dealt

    def _costs_of(self, indices: Indices) -> Any:
        costs = self._balance.costs
        if callable(costs):
            return np.array([costs(index) for index in indices.tolist()], dtype=np.float64)
        return np.asarray(costs)[indices]


def deal_by_cost(costs: Any, room: Sequence[int], first: int = 0) -> list[Indices]:
    """The numbers of the items that each rank gets, in their order, such that sums of costs are about the same.

    The dearest come first, each to the rank that has least so far, and room for it.

    Args:
        room: how many items each rank gets; together, as many as there are.
        first: the rank that begins where all have as much: so no rank is always the one that has more.
    """
    world = len(room)
    heap = [(0.0, (rank - first) % world, rank) for rank in range(world) if room[rank]]
    heapq.heapify(heap)
    own: list[list[int]] = [[] for _ in room]
    for item in np.argsort(-np.asarray(costs, dtype=np.float64), kind="stable").tolist():
        load, turn, rank = heapq.heappop(heap)
        own[rank].append(item)
        if len(own[rank]) < room[rank]:
            heapq.heappush(heap, (load + float(costs[item]), turn, rank))
    return [np.sort(np.array(items, dtype=np.int64)) for items in own]
