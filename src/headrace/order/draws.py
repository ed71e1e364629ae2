"""Orders by position other than the shuffle: natural, with replacement, by weight, and picks of given indices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.base.indices import Indices
from headrace.order.counter_rng import Floats, Words, constant, exponentials_at, fractions_at, words_at
from headrace.order.order import Order

_BLOCK = 2**15  # what is worked on at a time fits into the cache


@dataclass(frozen=True)
class NaturalOrder:
    """0, 1, 2, … up to `length`."""

    length: int

    def __len__(self) -> int:
        return self.length

    def at(self, positions: Indices) -> Indices:
        return positions


@dataclass(frozen=True)
class UniformDraws:
    """Independent draws from 0 … n - 1, all exactly equally likely.

    Raises:
        ValueError: `n` does not lie in [1, 2**63).
    """

    n: int
    length: int
    key: int

    def __post_init__(self) -> None:
        if not 0 < self.n < 2**63:
            raise ValueError(f"n must lie in [1, 2**63), got {self.n}.")

    def __len__(self) -> int:
        return self.length

    def at(self, positions: Indices) -> Indices:
        words = self._words(positions.astype(np.uint64))
        n = constant(self.n)
        words -= words // n * n  # the remainder: NumPy is four times slower at `%`
        return words.view(np.int64)

    def _words(self, counters: Words) -> Words:
        """Uniform words below the largest multiple of n; the few above it are replaced."""
        last = constant(2**64 - 1 - 2**64 % self.n)
        words = words_at(counters, self.key)
        rejected = np.flatnonzero(words > last)
        while rejected.size:
            replacements = words_at(words[rejected], self.key)  # at counters of 2**63 and more: no position is there
            words[rejected] = replacements
            rejected = rejected[replacements > last]
        return words


@dataclass(frozen=True, eq=False)
class WeightedDraws:
    """Independent draws in proportion to weights, of which there may be any number.

    Guarantees: what has no weight is never drawn.

    Args:
        cumulative: the running sums of the weights, as `draw_by_weight` makes them.
    """

    cumulative: Floats
    length: int
    key: int

    def __len__(self) -> int:
        return self.length

    def at(self, positions: Indices) -> Indices:
        targets = fractions_at(positions.astype(np.uint64), self.key)
        targets *= self.cumulative[-1]  # and stay below it, whatever the rounding
        ascending = np.argsort(targets)  # looked up in this order, they find in the cache what the last one needed
        drawn = np.empty(len(targets), dtype=np.int64)
        drawn[ascending] = np.searchsorted(self.cumulative, targets[ascending], side="right")
        return drawn


@dataclass(frozen=True, eq=False)
class PickedOrder:
    """Given indices, in an order of their places."""

    indices: Indices
    order: Order

    def __len__(self) -> int:
        return len(self.order)

    def at(self, positions: Indices) -> Indices:
        return self.indices.take(self.order.at(positions))


def draw_by_weight(weights: Floats, length: int, key: int) -> WeightedDraws:
    """`length` draws with replacement.

    Raises:
        ValueError: a weight is negative or not finite, or all are zero.
    """
    shares = _scale(weights)
    return WeightedDraws(np.cumsum(shares, out=shares), length, key)


def pick_by_weight(weights: Floats, length: int, key: int) -> PickedOrder:
    """`length` draws without replacement: each in proportion to the weights of those that are left.

    Raises:
        ValueError: a weight is negative or not finite, all are zero, or fewer than `length` are not.
    """
    shares = _scale(weights)
    candidates = np.flatnonzero(shares)
    if length > len(candidates):
        raise ValueError(
            f"Cannot draw {length} samples without replacement from {len(candidates)} that have a weight. "
            "Pass replacement=True, or a smaller num_samples."
        )
    # The first of exponential waiting times with these rates come in the order of weighted draws.
    waits = _waiting_times(candidates, shares, key)
    if 0 < length < len(waits):
        early = np.flatnonzero(waits <= np.partition(waits, length - 1)[length - 1])
        candidates, waits = candidates[early], waits[early]
    return PickedOrder(candidates[_rank(waits)[:length]], NaturalOrder(length))


def _waiting_times(candidates: Indices, rates: Floats, key: int) -> Floats:
    waits = np.empty(len(candidates))
    for start in range(0, len(candidates), _BLOCK):
        block = candidates[start : start + _BLOCK]
        with np.errstate(over="ignore"):  # of a rate next to zero: it comes last
            waits[start : start + _BLOCK] = exponentials_at(block.astype(np.uint64), key) / rates[block]
    return waits


def _rank(values: Floats) -> Indices:
    """Where the values lie in ascending order, the first of equal ones first."""
    order = np.argsort(values)
    ordered = values[order]
    if (ordered[1:] == ordered[:-1]).any():  # hardly ever; which comes first would depend on the machine
        return np.argsort(values, kind="stable")
    return order


def _scale(weights: Floats) -> Floats:
    """A copy of the weights, the largest of which becomes 1: so their sum is finite."""
    low, high = weights.min(initial=0.0), weights.max(initial=0.0)
    if not (low >= 0 and high < np.inf):  # nor if one of them is nan
        raise ValueError("weights must be finite and not negative.")
    if high == 0:
        raise ValueError("weights must not all be zero.")
    shares: Floats = weights / high
    return shares
