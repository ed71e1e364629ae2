"""Random 64-bit words as a function of a key and a counter: no state, so any of them can be had at any time.

Only operations whose result IEEE 754 or modular arithmetic fixes are used here and in what is built on it, so an order
is the same on every machine and with every version of NumPy.
"""

from __future__ import annotations

from hashlib import shake_128
from typing import Any, TypeAlias

import numpy as np

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def constant(value: int) -> Words:
    """An array without dimensions, which NumPy combines with others in half the time that a scalar takes."""
    return np.array(value, dtype=np.uint64)


# The step and the finalizer of SplitMix64.
_STEP = constant(0x9E3779B97F4A7C15)
_FACTORS = (constant(0xBF58476D1CE4E5B9), constant(0x94D049BB133111EB))
_SHIFTS = (constant(30), constant(27), constant(31))
_UNUSED_BITS = constant(12)

_LN_2 = 0.6931471805599453
_TERMS = 16  # of the series of the inverse hyperbolic tangent: enough for float64, as its argument is at most 1/3


def key_words(key: int, count: int) -> Words:
    """The first `count` words of the sequence that belongs to a key; a longer one begins with the same words.

    Raises:
        OverflowError: `key` does not lie in [0, 2**128).
    """
    stream = shake_128(key.to_bytes(16, "little")).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def scramble(words: Words) -> Words:
    """A fixed bijection of the 64-bit words that leaves no trace of their order; 0 stays 0."""
    mixed = words ^ (words >> _SHIFTS[0])
    mixed *= _FACTORS[0]
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _FACTORS[1]
    mixed ^= mixed >> _SHIFTS[2]
    return mixed


def words_at(counters: Words, key: int) -> Words:
    """Independent uniform words, one per counter; other keys give other ones."""
    first, second = key_words(key, 2)
    inner = counters * _STEP
    inner += first
    inner = scramble(inner)
    inner += second
    return scramble(inner)


def fractions_at(counters: Words, key: int) -> Floats:
    """Uniform numbers, one per counter: odd multiples of 2**-53, so neither 0 nor 1 is among them."""
    fractions = (words_at(counters, key) >> _UNUSED_BITS).astype(np.float64)
    fractions += 0.5
    fractions *= 2.0**-52
    return fractions


def exponentials_at(counters: Words, key: int) -> Floats:
    """Exponentially distributed numbers of mean 1, one per counter.

    The logarithm is summed here, because the last bit of NumPy's differs between machines.
    """
    mantissas, exponents = np.frexp(fractions_at(counters, key))
    ratios = (1.0 - mantissas) / (1.0 + mantissas)
    squares = ratios * ratios
    series = np.zeros_like(squares)
    for k in reversed(range(_TERMS)):
        series *= squares
        series += 1.0 / (2 * k + 1)
    return 2.0 * ratios * series - exponents * _LN_2
