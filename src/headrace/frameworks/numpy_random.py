"""Random indices drawn from NumPy's generators."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from headrace.base.indices import Indices

Weights: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


class NumpyRandom:
    """Draws from the given generator, or from NumPy's global one, so that `np.random.seed` makes a run repeatable."""

    def __init__(self, generator: np.random.Generator | np.random.RandomState | None) -> None:
        self._given = generator

    def draw_seed(self) -> int:
        given = self._given
        if isinstance(given, np.random.Generator):
            return int(given.integers(2**63 - 1))
        legacy: Any = np.random if given is None else given
        return int(legacy.randint(2**63 - 1, dtype=np.int64))

    def fresh(self) -> NumpyRandom:
        return NumpyRandom(np.random.default_rng(self.draw_seed()))

    def permutation(self, n: int) -> Indices:
        return self._generator().permutation(n)

    def integers(self, high: int, size: int) -> Indices:
        return self._generator().integers(high, size=size)

    def as_weights(self, weights: Any) -> Weights:
        return np.asarray(weights, dtype=np.float64)

    def weighted(self, weights: Any, size: int, replacement: bool) -> Indices:
        return draw_weighted(self._generator(), np.asarray(weights), size, replacement)

    def _generator(self) -> np.random.Generator:
        given = self._given
        return given if isinstance(given, np.random.Generator) else np.random.default_rng(self.draw_seed())


def draw_weighted(generator: np.random.Generator, weights: Weights, size: int, replacement: bool) -> Indices:
    """Indices drawn in proportion to their weights, for any number of weights.

    Raises:
        RuntimeError: a weight is negative or not finite, all are zero, or there are too few to draw from.
    """
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise RuntimeError("weights must be finite and not negative.")
    if not weights.any():
        raise RuntimeError("weights must not all be zero.")
    if replacement:
        cumulative = np.cumsum(weights / weights.max())
        draws = np.searchsorted(cumulative, generator.random(size) * cumulative[-1], side="right")
        capped: Indices = np.minimum(draws, np.flatnonzero(weights)[-1])  # rounding must not reach a weightless tail
        return capped
    candidates = np.flatnonzero(weights)
    if size > len(candidates):
        raise RuntimeError(
            f"Cannot draw {size} samples without replacement from {len(candidates)} that have a weight. "
            "Pass replacement=True, or a smaller num_samples."
        )
    # The smallest of exponential waiting times with these rates come in the order of weighted draws.
    waits = generator.standard_exponential(len(candidates)) / weights[candidates]
    order = np.argsort(waits, kind="stable")[:size]
    return candidates.take(order)
