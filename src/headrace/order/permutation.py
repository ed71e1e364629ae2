"""Shuffles of any length that are computed where they are read: nothing is stored, and every position is as near."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from headrace.base.indices import Indices
from headrace.order.counter_rng import Words, constant, key_words, scramble

_LONGEST = 2**63 - 1

# Chosen by statistics over millions of keys: they tell networks of 4 and 5 rounds from true shuffles, but not one of 6.
# On the smallest grids a round only halves the unevenness; there, all n! orders shall still be equally likely.
_ROUNDS = 6
_SMALL = 2**10
_ROUNDS_IF_SMALL = 32

_BLOCK = 2**14  # what is worked on at a time fits into the cache
_HALF_A_WORD = constant(32)
_Step: TypeAlias = Callable[[Words, "Words | None"], Words]


@dataclass(frozen=True)
class Permutation:
    """The numbers 0 … n - 1 in an order that the key decides.

    Guarantees: every number comes once; constant memory; as quick at the last position as at the first.

    Args:
        n: up to 2**63 - 1.
        key: 128 bits, as `derive_key` makes them.

    Raises:
        ValueError: `n` is negative or too large.

    Examples:
        >>> Permutation(6, key=1).at(np.arange(6))
        array([4, 0, 2, 3, 5, 1])
    """

    n: int
    key: int
    _network: _Network = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.n <= _LONGEST:
            raise ValueError(f"n must lie in [0, 2**63), got {self.n}.")
        object.__setattr__(self, "_network", _Network(self.n, self.key))

    def __reduce__(self) -> tuple[Any, ...]:
        return Permutation, (self.n, self.key)

    def __len__(self) -> int:
        return self.n

    def at(self, positions: Indices) -> Indices:
        """The numbers at these positions.

        Raises:
            IndexError: a position lies outside [0, n).
        """
        return self._map(self._network.forth, positions, None)

    def position_of(self, numbers: Indices) -> Indices:
        """Where these numbers come: the inverse of `at`.

        Raises:
            IndexError: a number lies outside [0, n).
        """
        return self._map(self._network.back, numbers, None)

    def in_pass(self, passes: Indices, positions: Indices) -> Indices:
        """The numbers at positions of further permutations, one per pass; pass 0 is this one.

        Raises:
            IndexError: a position lies outside [0, n).
        """
        return self._map(self._network.forth, positions, scramble(passes.astype(np.uint64)))

    def _map(self, step: _Step, numbers: Indices, salts: Words | None) -> Indices:
        if len(numbers) <= _BLOCK:
            return self._walk(step, numbers, salts)
        mapped = np.empty(len(numbers), dtype=np.int64)
        for start in range(0, len(numbers), _BLOCK):
            block = slice(start, start + _BLOCK)
            mapped[block] = self._walk(step, numbers[block], None if salts is None else salts[block])
        return mapped

    def _walk(self, step: _Step, start: Indices, salts: Words | None) -> Indices:
        """Follow the network, which permutes a few numbers more, until all are back in [0, n)."""
        numbers = start.astype(np.uint64)
        if numbers.size and numbers.max() >= self._network.end:  # negative ones too, as they have become huge
            raise IndexError(f"Positions must lie in [0, {self.n}).")
        numbers = step(numbers, salts)
        outside = np.flatnonzero(numbers >= self._network.end)
        while outside.size:
            moved = step(numbers[outside], None if salts is None else salts[outside])
            numbers[outside] = moved
            outside = outside[moved >= self._network.end]
        return numbers.view(np.int64)


class _Network:
    """A Feistel network on a grid of rows and columns that has at least n places, and hardly more.

    Rounds come in pairs: one moves every number along its column, as far as a random function of the column says; the
    next along its row, likewise. The number of columns is a power of two near the square root of n.
    """

    def __init__(self, n: int, key: int) -> None:
        column_bits = max(n - 1, 0).bit_length() // 2
        self.end = constant(n)
        self._rows = constant(-(-n >> column_bits))
        self._column_bits = constant(column_bits)
        self._column_mask = constant((1 << column_bits) - 1)
        self._excess_bits = constant(64 - column_bits)
        count = _ROUNDS if n > _SMALL else _ROUNDS_IF_SMALL
        rounds = [_Round(*words) for words in key_words(key, 2 * count).reshape(count, 2).tolist()]
        self._pairs = list(zip(rounds[::2], rounds[1::2], strict=True))

    def forth(self, numbers: Words, salts: Words | None) -> Words:
        """Where the network puts each number; a salt per number makes it another network."""
        rows, columns = numbers >> self._column_bits, numbers & self._column_mask
        words, spare = np.empty_like(rows), np.empty_like(rows)
        for down, along in self._pairs:
            rows += self._height(down(columns, salts, words, spare))
            np.minimum(rows, np.subtract(rows, self._rows, spare), out=rows)  # modulo: below zero wraps to huge
            columns ^= self._width(along(rows, salts, words, spare))
        return (rows << self._column_bits) | columns

    def back(self, numbers: Words, salts: Words | None) -> Words:
        """The inverse of `forth`."""
        rows, columns = numbers >> self._column_bits, numbers & self._column_mask
        words, spare = np.empty_like(rows), np.empty_like(rows)
        for down, along in reversed(self._pairs):
            columns ^= self._width(along(rows, salts, words, spare))
            rows -= self._height(down(columns, salts, words, spare))
            np.minimum(rows, np.add(rows, self._rows, spare), out=rows)
        return (rows << self._column_bits) | columns

    def _height(self, words: Words) -> Words:
        """Bring the words into [0, rows)."""
        words >>= _HALF_A_WORD
        words *= self._rows
        words >>= _HALF_A_WORD
        return words

    def _width(self, words: Words) -> Words:
        """Bring the words into [0, columns)."""
        words >>= self._excess_bits
        return words


class _Round:
    """A random function, chosen by two words of the key, whose high bits are good."""

    def __init__(self, factor: int, offset: int) -> None:
        self._factor = constant(factor | 1)  # odd, or bits are lost
        self._offset = constant(offset)

    def __call__(self, numbers: Words, salts: Words | None, words: Words, spare: Words) -> Words:
        """The words of these numbers, written into `words`: new arrays would make short reads a fifth slower."""
        np.multiply(numbers, self._factor, words)
        words += self._offset
        if salts is not None:
            words += salts
        words *= np.right_shift(words, _HALF_A_WORD, spare)
        return words


@dataclass(frozen=True)
class RepeatedPermutation:
    """Permutations of 0 … n - 1, one after the other, each in an order of its own, cut off at `length`.

    Raises:
        ValueError: `n` is too large, or not positive though `length` is.
    """

    n: int
    length: int
    key: int
    _permutation: Permutation = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.n <= 0 < self.length:
            raise ValueError(f"n must be positive to draw {self.length} numbers, got {self.n}.")
        object.__setattr__(self, "_permutation", Permutation(self.n, self.key))

    def __reduce__(self) -> tuple[Any, ...]:
        return RepeatedPermutation, (self.n, self.length, self.key)

    def __len__(self) -> int:
        return self.length

    def at(self, positions: Indices) -> Indices:
        if self.length <= self.n:
            return self._permutation.at(positions)
        passes = positions // self.n
        return self._permutation.in_pass(passes, positions - passes * self.n)
