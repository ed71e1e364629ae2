"""Users' own sources: blocks that a function of theirs reads, and any iterable, whose rows are cut into blocks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace.base.errors import RecordError, check_count
from headrace.base.own_states import knows_state, load_state, state_of
from headrace.sources.chunks import ObjectChunk, skip_rows
from headrace.sources.source import Block, Chunk, FileVersion, OnBad
from headrace.streams.windows import Blocks, ListedBlocks, Share

if TYPE_CHECKING:
    from headrace.streams.counts import RowCounts
    from headrace.streams.recipe import Ask

_ROWS_AT_ONCE = 4096


class OwnSource:
    """Blocks of any kind, read by a function.

    Args:
        blocks: what `read` is called with, in the natural order of the data: file names, ranges, ids.
        read: yields the rows of a block, always the same.
        counts: how many rows each block has, if that is known.

    Raises:
        TypeError: `blocks` or `counts` are something else.
        ValueError: there are not as many counts as blocks, or one is negative.
    """

    def __init__(
        self, blocks: Iterable[Any], read: Callable[[Any], Iterable[Any]], counts: Iterable[int] | None = None
    ) -> None:
        self._keys = _listed("blocks", blocks, "what `read` is called with")
        known = [None] * len(self._keys) if counts is None else _checked_counts(counts, len(self._keys))
        self._blocks = [Block(str(key), i, None, n) for i, (key, n) in enumerate(zip(self._keys, known, strict=True))]
        self._read = read

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def versions(self) -> list[FileVersion]:
        return []

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on; see `Source.read`.

        Raises:
            RecordError: the block has another number of rows than `counts` says, and `on_bad` is None.
        """
        yield from skip_rows(self._chunks(block, checks=on_bad is None), first_row)

    def _chunks(self, block: Block, *, checks: bool) -> Iterator[ObjectChunk]:
        rows, n_rows = iter(self._read(self._keys[block.start])), 0
        while objects := list(islice(rows, _ROWS_AT_ONCE)):
            n_rows += len(objects)
            yield ObjectChunk(objects)
        if checks and block.rows not in (None, n_rows):
            raise RecordError(
                f"Block {block.path} must have {block.rows} rows, as counts= says, but has {n_rows}. Pass the right "
                "counts, or none."
            )

    def describe(self) -> dict[str, Any]:
        return {"format": "your own", "blocks": len(self._blocks)}


def _listed(name: str, given: Any, what: str) -> list[Any]:
    if not isinstance(given, Iterable):
        raise TypeError(f"{name} must be an iterable of {what}, got {given!r:.80}.")
    return list(given)


def _checked_counts(counts: Any, n_blocks: int) -> list[Any]:
    listed = _listed("counts", counts, "the numbers of rows of the blocks")
    if len(listed) != n_blocks:
        raise ValueError(f"counts must be one for each of the {n_blocks} blocks, got {len(listed)}.")
    for count in listed:
        check_count("Each of counts", count, 0)
    return listed


_STATES_KEPT = 256  # of the shares that were handed out last

Sharing: TypeAlias = Literal["stride", "dispatch"]


@dataclass(frozen=True, slots=True)
class HandedBlock(Block):
    """A block whose rows are sent along with it."""

    handed: tuple[Any, ...] = field(default=(), compare=False)


class IterableSource:
    """The rows of an iterable. It can only be gone through from its beginning, so that is what all readers do.

    Guarantees: every row is in one block, whoever reads it; somebody who reads blocks in ascending order goes through
    the iterable once.

    Args:
        rows: an iterable that gives the same rows each time, or a function that returns one.
        shard: "stride" lets every worker go through all rows, and leave out those of the others; "dispatch" lets the
            loader's process do that, and send rows to the workers.
        block_rows: rows in a block.
    """

    in_order = True

    def __init__(
        self, rows: Iterable[Any] | Callable[[], Iterable[Any]], shard: Sharing = "stride", block_rows: int = 1024
    ) -> None:
        self._rows = rows
        self.shard = shard
        self.block_rows = block_rows
        # What other iterables say of their length is a promise at best.
        self._n_rows: int | None = len(rows) if isinstance(rows, Sequence) else None
        self._cursor = Cursor(self)

    def iterate(self) -> Iterable[Any]:
        """The iterable, to be gone through from its beginning."""
        rows = self._rows
        return rows if isinstance(rows, Iterable) else rows()

    def plan_blocks(self, seed: int | None, epoch: int, counts: RowCounts, ask: Ask, *, must_end: bool) -> Blocks:
        if self._n_rows is None and not must_end:
            return OpenBlocks(self.block_rows)
        return ListedBlocks(self.blocks())

    def blocks(self) -> Sequence[Block]:
        """All blocks; goes through the iterable once, if it does not tell its length."""
        if self._n_rows is None:
            self._n_rows = sum(1 for _ in self.iterate())
        n, size = self._n_rows, self.block_rows
        return [_block(start, min(start + size, n), is_known=True) for start in range(0, n, size)]

    def versions(self) -> list[FileVersion]:
        return []

    def n_asked(self, blocks: Iterable[Block]) -> int:
        """How many rows these blocks have, if the iterable is long enough."""
        return sum(block.stop - block.start for block in blocks)

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        rows = block.handed if isinstance(block, HandedBlock) else self._cursor.read(block.start, block.stop)
        if len(rows) > first_row:
            yield ObjectChunk(list(rows[first_row:]))

    @property
    def origin(self) -> int | None:
        """A fingerprint of the first row, as whoever reads here has found it; None if that is not known."""
        return self._cursor.origin

    def describe(self) -> dict[str, Any]:
        return {"format": f"an iterable, {type(self._rows).__name__}", "shard": self.shard}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._cursor = Cursor(self)


class Cursor:
    """A place in an iterable, which moves forward; back to the beginning if it must."""

    def __init__(self, source: IterableSource) -> None:
        self._source = source
        self._rows: Iterator[Any] | None = None
        self._dataset: Iterable[Any] = ()
        self._place = 0
        self.origin: int | None = None

    def read(self, start: int, stop: int) -> list[Any]:
        """The rows [start, stop); fewer, if the iterable ends."""
        if self._rows is None or start < self._place:
            self._dataset = self._source.iterate()
            self._rows, self._place = iter(self._dataset), 0
        try:
            first = list(islice(self._rows, 1)) if self._place == 0 < start else []
            skipped = len(first) + sum(1 for _ in islice(self._rows, start - self._place - len(first)))
            rows = list(islice(self._rows, stop - start))
            if self._place == 0:
                self.origin = _fingerprint((first or rows)[:1])
        except BaseException:
            self._rows = None  # a generator that raised has ended
            raise
        self._place += skipped + len(rows)
        return rows

    def state(self) -> dict[str, Any] | None:
        """The place, and what the iterable and its iterator tell of themselves there; None if they tell nothing."""
        known = {name: stream for name, stream in self._streams().items() if knows_state(stream)}
        if not known:
            return None
        return {"row": self._place, **{name: state_of(stream) for name, stream in known.items()}}

    def go_to(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._dataset = self._source.iterate()
        if "dataset" in state:
            load_state(self._dataset, state["dataset"])
        self._rows = iter(self._dataset)
        if "iterator" in state:
            load_state(self._rows, state["iterator"])
        elif self._rows is self._dataset and "dataset" in state:
            load_state(self._rows, state["dataset"])  # which `__iter__` may have reset
        self._place = state["row"]

    def _streams(self) -> dict[str, Any]:
        streams: dict[str, Any] = {"dataset": self._dataset}
        return streams if self._rows is self._dataset else {**streams, "iterator": self._rows}


_PLAIN = (str, bytes, int, float, bool, type(None))
_MOST_LOOKED_AT = 64  # values in a row


def _fingerprint(rows: list[Any]) -> int | None:
    """A number that tells the first row from another one; None if there is none, or it is not of plain values."""
    values = [value for row in rows for value in (row if isinstance(row, (list, tuple)) else [row])]
    values += [value for row in rows if isinstance(row, dict) for value in row.values()]
    values = [value for value in values[:_MOST_LOOKED_AT] if not isinstance(value, dict)]
    is_plain = values and all(type(value) in _PLAIN for value in values)
    return zlib.crc32(repr(values).encode()) if is_plain else None


class Dispatcher:
    """Sends the rows of an iterable along with the shares that ask for them.

    Args:
        index: the number of the first share.
    """

    def __init__(self, source: IterableSource, index: int = 0) -> None:
        self._cursor = Cursor(source)
        self._index = index
        self._states: dict[int, dict[str, Any] | None] = {}

    def hand_out(self, shares: Iterable[Share]) -> Iterator[Share]:
        """The shares, with their rows, until the iterable has ended."""
        for share in shares:
            self._states[self._index] = self._cursor.state()
            self._states.pop(self._index - _STATES_KEPT, None)
            self._index += 1
            blocks = tuple(self._filled(block) for block in share.window.blocks)
            if not any(block.handed for block in blocks):
                return
            yield share._replace(window=share.window._replace(blocks=blocks))

    def _filled(self, block: Block) -> HandedBlock:
        rows = self._cursor.read(block.start, block.stop)
        return HandedBlock(block.path, block.start, block.stop, block.rows, block.n_bytes, tuple(rows))

    def state_at(self, index: int) -> dict[str, Any] | None:
        """Where the iterable was before a share, if it knows its state."""
        return self._states.get(index)

    def go_to(self, state: dict[str, Any]) -> None:
        """Let the first share be read from where `state` was taken."""
        self._cursor.go_to(state)


class OpenBlocks:
    """Blocks of which nobody knows how many there are."""

    n_blocks = None

    def __init__(self, block_rows: int) -> None:
        self._block_rows = block_rows

    def __getitem__(self, number: int, /) -> Block:
        return _block(number * self._block_rows, (number + 1) * self._block_rows, is_known=False)


def _block(start: int, stop: int, *, is_known: bool) -> Block:
    return Block(f"rows {start} to {stop - 1} of an iterable", start, stop, stop - start if is_known else None)
