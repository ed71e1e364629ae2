"""How surprising counts and correlations are, in standard deviations of a normal distribution."""

from __future__ import annotations

import math

import numpy as np

# A right implementation exceeds it with a probability of 3e-7 on each side. The keys of all tests are fixed, so a test
# that has passed will pass; but one that fails after a change has most likely found something.
SURPRISING = 5.0


def surprise(counts, expected=None) -> float:
    """Of counts that should be equal, or as expected; Wilson and Hilferty's approximation of the chi-square test."""
    counts = np.asarray(counts, dtype=np.float64).ravel()
    expected = np.full(len(counts), counts.mean()) if expected is None else np.asarray(expected, dtype=np.float64)
    assert expected.min() >= 5, "too few draws for this test"
    freedom = len(counts) - 1
    ratio = ((counts - expected) ** 2 / expected).sum() / freedom
    return float((ratio ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom)))


def surprise_between(first, second) -> float:
    """Of two rows of counts that should come from the same distribution."""
    table = np.array([first, second], dtype=np.float64)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    assert expected.min() >= 5, "too few draws for this test"
    freedom = table.shape[1] - 1
    ratio = ((table - expected) ** 2 / expected).sum() / freedom
    return float((ratio ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom)))


def correlation(first, second) -> float:
    """Of two rows of numbers that should have nothing to do with each other."""
    r = np.corrcoef(np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64))[0, 1]
    return float(r * math.sqrt(len(first)))
