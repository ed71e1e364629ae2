"""The windows of an epoch: which blocks are read together, in which order, and what `take` and `skip` leave of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np

from headrace.base.generators import derive_key
from headrace.base.indices import Indices
from headrace.order.permutation import Permutation
from headrace.sources.compression import is_compressed
from headrace.sources.source import Block

_MOST_NAMED = 3  # blocks
_MOST_GIVEN_WHOLE = 256 << 20


@dataclass(frozen=True)
class Limit:
    """Leaves out the first `skip` rows, and all after the next `take`.

    Attributes:
        stage: how many steps have been done to the rows before they are counted.
        take: None for all.
    """

    stage: int
    skip: int
    take: int | None


class Cut(NamedTuple):
    """Of a window, only the rows [start, stop) are left, after so many steps."""

    stage: int
    start: int
    stop: int


Cuts: TypeAlias = tuple[Cut, ...]
Counting: TypeAlias = Callable[[int, int, Cuts], int]
"""The number of rows of a window, after so many steps, with these cuts."""


class PastTheEndError(Exception):
    """There is no such window: the data had ended before."""


def cut_windows(limits: tuple[Limit, ...], windows: Iterable[int], count_rows: Counting) -> Iterator[tuple[int, Cuts]]:
    """The windows that have rows left, in their order, and their cuts.

    Counts only as far as it must, and only when asked: `take(100)` reads the first window, and not the last.
    """
    left: Iterator[tuple[int, Cuts]] = ((number, ()) for number in windows)
    for limit in limits:
        left = _cut(limit, left, count_rows)
    return left


def _cut(limit: Limit, windows: Iterator[tuple[int, Cuts]], count_rows: Counting) -> Iterator[tuple[int, Cuts]]:
    end = None if limit.take is None else limit.skip + limit.take
    if end == limit.skip:
        return
    first = 0  # row of the window at hand
    for number, cuts in windows:
        if end is None and first >= limit.skip:
            yield number, cuts  # all of the rest; nobody need count it
            continue
        try:
            n_rows = count_rows(number, limit.stage, cuts)
        except PastTheEndError:
            return
        start, stop = max(0, limit.skip - first), n_rows if end is None else min(n_rows, end - first)
        if start < stop:
            is_whole = (start, stop) == (0, n_rows)
            yield number, cuts if is_whole else (*cuts, Cut(limit.stage, start, stop))
        first += n_rows
        if end is not None and first >= end:
            return


DEFAULT_BLOCKS = 8
_EXPANSION = 4  # of what is compressed


@dataclass(frozen=True)
class Shuffle:
    """How a stream is mixed: how much of it, from places far from each other in the data, is shuffled together.

    Attributes:
        rows: about how many rows; at least those of one block.
        blocks: or how many blocks. Without both, it is 8 of them, or as many as fit into the memory.
        seed: used if the loader has none.
        most_bytes: that the rows of a window may take, as estimated by the sizes of their blocks, where they are known.
    """

    blocks: int | None = None
    seed: int = 0
    rows: int | None = None
    most_bytes: int = 2_000_000_000

    def blocks_per_window(self, blocks: Sequence[Block], count_rows: Callable[[Block], int]) -> int:
        """How many blocks make a window.

        Guarantees: a function of the blocks, so that all ranks, epochs and resumed runs find the same.

        Args:
            blocks: of the source; the first ones, if nobody knows how many there are.
            count_rows: is called if no block tells how many rows it has, for as many as it takes to find one that has.

        Raises:
            ValueError: a window would take too much memory.
        """
        n = self.blocks or DEFAULT_BLOCKS
        if self.rows is not None:
            n = max(1, math.ceil(self.rows / max(_rows_per_block(blocks, count_rows), 1)))
        factors = {path: _EXPANSION if is_compressed(path) else 1 for path in {block.path for block in blocks}}
        sizes = [block.n_bytes * factors[block.path] for block in blocks]
        if not sizes or n <= 0:
            return n
        per_block = sum(sizes) / len(sizes)
        if self.rows is None and self.blocks is None and per_block:
            n = max(1, min(n, int(self.most_bytes / per_block)))
        if (n_bytes := min(n, len(sizes)) * per_block) > self.most_bytes:
            self._refuse(n, n_bytes, per_block)
        return n

    def _refuse(self, n_blocks: int, n_bytes: float, per_block: float) -> NoReturn:
        what = f"{self.rows:,} rows" if self.rows is not None else f"{n_blocks:,} blocks"
        fit = int(self.most_bytes / per_block)
        if not fit:
            cure = "Split the files into smaller ones or decompress them"
        elif self.rows is not None:
            cure = f"Pass a window of at most {max(1, int(self.rows * self.most_bytes / n_bytes)):,} rows"
        else:
            cure = f"Pass at most blocks={fit}"
        raise ValueError(
            f"A window of {what} must fit into memory={self.most_bytes:,} bytes, but would take about "
            f"{int(n_bytes):,}. {cure}; or pass a larger memory=, of which each worker needs about twice."
        )


def _rows_per_block(blocks: Sequence[Block], count_rows: Callable[[Block], int]) -> float:
    """How many rows a block has on average, from what blocks tell, or from one that is counted."""
    told = [block.rows for block in blocks if block.rows is not None]
    if told:
        return sum(told) / len(told)
    for block in blocks if len(blocks) > 1 else ():
        n_rows = count_rows(block)
        if n_rows:
            return n_rows * (sum(each.n_bytes for each in blocks) / len(blocks) / block.n_bytes if block.n_bytes else 1)
    return 1.0


class Window(NamedTuple):
    """Some blocks that are read together by one worker: all that it needs to know.

    Attributes:
        number: its place in the epoch, over all ranks.
        key: that its rows are shuffled by; of its own in every epoch.
        cuts: which of its rows are left.
        stretch: which part of it this is, if it is a file that cannot be split, and is dealt out over workers.
    """

    epoch: int
    number: int
    blocks: tuple[Block, ...]
    key: int
    is_shuffled: bool = False
    cuts: Cuts = ()
    stretch: int = 0

    @property
    def n_bytes(self) -> int:
        """How many will be read, about; 0 if nobody knows."""
        return sum(block.n_bytes for block in self.blocks)

    @property
    def is_given_whole(self) -> bool:
        """Whether all of its columns are handed over at once, if batches are made of them later."""
        return self.is_shuffled and self.n_bytes <= _MOST_GIVEN_WHOLE

    def where(self) -> str:
        """What is read, for people."""
        named = ", ".join(block.where() for block in self.blocks[:_MOST_NAMED])
        more = len(self.blocks) - _MOST_NAMED
        return f"{named} and {more} blocks more" if more > 0 else named


class Share(NamedTuple):
    """The rows of a window that one rank gets: `rows[first::step]`, of these `[skip:]`, and of these `[:most]`.

    If rows are packed, `skip` and `most` are numbers of tokens.

    Attributes:
        is_again: whether they come a second time, to make ranks even.
        unit: how many rows that follow each other are dealt together; `first` and `step` are numbers of these.
    """

    window: Window
    first: int = 0
    step: int = 1
    skip: int = 0
    most: int | None = None
    is_again: bool = False
    unit: int = 1

    def n_dealt(self, n_rows: int) -> int:
        """How many of the rows of a window of so many are dealt to this share, before `skip` and `most`."""
        if self.unit == 1:
            return max(0, -(-(n_rows - self.first) // self.step))
        whole, rest = divmod(n_rows, self.unit)
        n_whole = max(0, -(-(whole - self.first) // self.step))
        has_rest = whole >= self.first and (whole - self.first) % self.step == 0
        return n_whole * self.unit + (rest if has_rest else 0)

    def rows_at(self, places: Indices) -> Indices:
        """The numbers in the window of the rows at some places of this share, before `skip`."""
        units, rests = np.divmod(places, self.unit)
        numbers: Indices = (self.first + units * self.step) * self.unit + rests
        return numbers


class Blocks(Protocol):
    """The blocks of an epoch, of which there may be no end."""

    @property
    def n_blocks(self) -> int | None:
        """None if nobody knows, or there is no end."""
        ...

    def __getitem__(self, number: int, /) -> Block:
        """Raises IndexError after the last."""
        ...


class ListedBlocks(tuple[Block, ...]):
    """Blocks that are all known."""

    __slots__ = ()

    @property
    def n_blocks(self) -> int:
        return len(self)


class WindowPlan:
    """The windows of one epoch, as a function of their number.

    Guarantees: every block is in exactly one window of each round; pure, so that all ranks find the same.

    Args:
        rounds: how often the data is gone through; None for ever.
        in_order: whether blocks are taken in their natural order, because they can be read only so.
        per_window: how many blocks make a window.
    """

    def __init__(
        self,
        blocks: Blocks,
        shuffle: Shuffle | None,
        seed: int,
        epoch: int,
        rounds: int | None = 1,
        *,
        in_order: bool = False,
        per_window: int = 1,
    ) -> None:
        self._blocks = blocks
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = epoch
        self._in_order = in_order or shuffle is None or blocks.n_blocks is None
        self.per_window = per_window
        self._rounds = rounds
        self._order: tuple[int, Indices] = (-1, np.empty(0, np.int64))  # of all blocks, in the round asked for last
        self.per_round = None if blocks.n_blocks is None else -(-blocks.n_blocks // self.per_window)

    @property
    def n_windows(self) -> int | None:
        """How many there are; None if nobody knows, or there is no end."""
        if self.per_round == 0:
            return 0
        return None if self._rounds is None or self.per_round is None else self.per_round * self._rounds

    def rounds(self) -> Iterator[Iterable[int]]:
        """The numbers of the windows of each round."""
        if not self.per_round:
            yield from () if self.per_round == 0 else (count(),)
            return
        for i in count() if self._rounds is None else range(self._rounds):
            yield range(i * self.per_round, (i + 1) * self.per_round)

    def window(self, number: int) -> Window:
        """Window `number`.

        Raises:
            IndexError: there are not so many.
        """
        if self.n_windows is not None and number >= self.n_windows:
            raise IndexError(f"window {number}")
        turn, place = (0, number) if self.per_round is None else divmod(number, self.per_round)
        blocks = tuple(self._blocks[i] for i in self._places(turn, place * self.per_window))
        key = derive_key(self._seed, self._epoch, f"window {number}")
        return Window(self._epoch, number, blocks, key, self._shuffle is not None)

    def _places(self, turn: int, first: int) -> list[int]:
        """The numbers of the blocks of a window."""
        n, end = self._blocks.n_blocks, first + self.per_window
        if self._in_order or n is None:
            return list(range(first, end if n is None else min(end, n)))
        if self._order[0] != turn:
            key = derive_key(self._seed, self._epoch, f"blocks, round {turn}")
            self._order = turn, Permutation(n, key).at(np.arange(n))
        numbers: list[int] = self._order[1][first:end].tolist()
        return numbers


class EpochWindows:
    """The windows of an epoch that have rows left after `take` and `skip`, by their place among these.

    Args:
        count_rows: is asked no more than it must.
    """

    def __init__(self, plan: WindowPlan, limits: tuple[Limit, ...], count_rows: Counting) -> None:
        self._plan = plan
        self._is_limited = bool(limits)
        self._left = _find_left(plan, limits, count_rows)
        self._found: list[tuple[int, Cuts]] = []

    @property
    def n_windows(self) -> int | None:
        """How many there are; None if nobody knows, or there is no end."""
        if not self._is_limited:
            return self._plan.n_windows
        if self._plan.n_windows is None:
            return None
        self._found.extend(self._left)
        return len(self._found)

    @property
    def per_window(self) -> int:
        """How many blocks make a window."""
        return self._plan.per_window

    @property
    def most_empty(self) -> int | None:
        """After how many windows without rows there is no end of such; None if they end anyway."""
        return self._plan.per_round if self._plan.n_windows is None else None

    def window(self, place: int) -> Window:
        """The window at a place.

        Raises:
            IndexError: there are not so many.
        """
        if not self._is_limited:
            return self._plan.window(place)
        while len(self._found) <= place:
            found = next(self._left, None)
            if found is None:
                raise IndexError(f"window {place}")
            self._found.append(found)
        number, cuts = self._found[place]
        return self._plan.window(number)._replace(cuts=cuts)

    def __iter__(self) -> Iterator[Window]:
        for place in count():
            try:
                yield self.window(place)
            except IndexError:
                return


def _find_left(plan: WindowPlan, limits: tuple[Limit, ...], count_rows: Counting) -> Iterator[tuple[int, Cuts]]:
    for numbers in plan.rounds():
        is_empty = True
        for found in cut_windows(limits, numbers, count_rows):
            is_empty = False
            yield found
        if is_empty and plan.n_windows is None:
            return  # if this round has nothing, there is no end of rounds that have nothing


class EmptyWindows:
    """Notices that what is repeated for ever has no rows at all.

    Args:
        most: after how many windows without rows no others will come; None if they end by themselves.
    """

    def __init__(self, most: Callable[[], int | None] | None) -> None:
        self._most = most
        self._n = 0

    def are_all(self, n_rows: int) -> bool:
        """Whether all windows are empty, the next one having so many rows."""
        if n_rows:
            self._most = None
        if self._most is None:
            return False
        self._n += 1
        most = self._most()
        return most is not None and self._n >= most
