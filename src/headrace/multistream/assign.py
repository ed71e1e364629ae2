"""Which pieces each position reads, one after the other: pure functions of numbers."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np

from headrace.base.indices import Indices
from headrace.order.counter_rng import words_at
from headrace.order.permutation import Permutation

Assign: TypeAlias = Literal["shuffle", "partition", "offset"]
ASSIGNS = ("shuffle", "partition", "offset")

_SHORT = 2048
_CHUNK = 4096  # ordinals that are looked at together


class PieceOrder(Protocol):
    """The pieces of one position, by their ordinal: 0, 1, …, without end."""

    @property
    def share(self) -> int:
        """After so many pieces, the position has read what is its own; then it may go on."""

    @property
    def period(self) -> int:
        """So many pieces have as many items together, wherever one begins to count in multiples of it."""

    def at(self, ordinals: Indices) -> Indices: ...


class Shuffles:
    """Permutations of 0 … n - 1, one for each pass; any number of them, as a function of the key alone.

    Short ones are sorted by random words, and longer ones computed where they are read, which is quicker then.
    """

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self._key = key
        self._permutation = None if n <= _SHORT else Permutation(n, key)

    def at(self, passes: Indices, places: Indices) -> Indices:
        """The numbers at places of permutations."""
        if self._permutation is not None:
            return self._permutation.in_pass(passes, places)
        numbers = np.empty_like(places)
        for number in sorted(set(passes.tolist())):  # np.unique imports numpy.ma
            counters = np.arange(number * self.n, (number + 1) * self.n).astype(np.uint64)
            is_here = passes == number
            numbers[is_here] = np.argsort(words_at(counters, self._key), kind="stable")[places[is_here]]
        return numbers


@dataclass(frozen=True)
class ShuffledPieces:
    """All pieces, in another order in every cycle, and at every one of so many positions.

    Guarantees: as long as there are enough pieces, no two positions begin a cycle with the same one.
    """

    shuffles: Shuffles
    positions: int
    position: int

    @property
    def share(self) -> int:
        return self.shuffles.n

    period = share

    def at(self, ordinals: Indices) -> Indices:
        n = self.shuffles.n
        cycles = ordinals // n
        passes = cycles * (self.positions + 1)
        own, nobodys = passes + self.position, passes + self.positions
        begins = self.shuffles.at(nobodys, np.full_like(ordinals, self.position % n))
        turned = self.shuffles.at(own, ordinals - cycles * n) - self.shuffles.at(own, np.zeros_like(ordinals))
        return (turned + begins) % n


@dataclass(frozen=True)
class ListedPieces:
    """Some pieces in the order of a list, over and over."""

    pieces: Indices

    @property
    def share(self) -> int:
        return len(self.pieces)

    period = share

    def at(self, ordinals: Indices) -> Indices:
        return self.pieces[ordinals % len(self.pieces)]


@dataclass(frozen=True)
class FollowingPieces:
    """The pieces from one on, all of them, round and round."""

    start: int
    share: int
    period: int

    def at(self, ordinals: Indices) -> Indices:
        return (self.start + ordinals) % self.period


def partition(lengths: Indices | None, n: int, groups: int) -> list[Indices]:
    """Deal n pieces to groups whose lengths come out even: the longest first, each to the group that has least.

    Guarantees: every piece is in one group; within a group they keep their order. Without lengths, or if all are equal,
    pieces are dealt round and round.
    """
    if lengths is None or len(np.unique(lengths)) == 1:
        return [np.arange(group, n, groups) for group in range(groups)]
    members: list[list[int]] = [[] for _ in range(groups)]
    loads = [(0, group) for group in range(groups)]
    for piece in np.argsort(-lengths, kind="stable").tolist():
        load, group = loads[0]
        members[group].append(piece)
        heapq.heapreplace(loads, (load + int(lengths[piece]), group))
    return [np.array(sorted(group), dtype=np.int64) for group in members]


def following_pieces(n: int, positions: int, position: int) -> FollowingPieces:
    """Positions start at places that lie evenly in the n pieces."""
    start, end = (-(-place * n // positions) for place in (position, position + 1))
    return FollowingPieces(start % n, end - start, n)


def items_of(order: PieceOrder, lengths: Indices, pieces: int) -> int:
    """How many items the first so many pieces have."""
    starts = range(0, pieces, _CHUNK)
    return sum(int(lengths[order.at(np.arange(i, min(i + _CHUNK, pieces)))].sum()) for i in starts)


def locate(order: PieceOrder, lengths: Indices, step: int) -> tuple[int, int]:
    """The ordinal of the piece that item `step` of a position is in, and how many items of it come before.

    Lengths are added up, of one period at most; nothing is read.
    """
    per_period = items_of(order, lengths, order.period)
    if not per_period:
        return order.period, 0
    periods, rest = divmod(step, per_period)
    ordinal, chunk = periods * order.period, min(_CHUNK, order.period)
    while True:
        ends = np.cumsum(lengths[order.at(np.arange(ordinal, ordinal + chunk))])
        if rest < ends[-1]:
            i = int(np.searchsorted(ends, rest, side="right"))
            return ordinal + i, rest - (int(ends[i - 1]) if i else 0)
        rest -= int(ends[-1])
        ordinal += chunk
