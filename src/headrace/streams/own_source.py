"""A user's own source: a list of blocks, and a function that reads one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from headrace.sources.source import Block, Chunk, FileVersion, OnBad
from headrace.streams.rows import ObjectRows

_ROWS_AT_ONCE = 4096


class OwnSource:
    """Blocks of any kind, read by a function.

    Args:
        blocks: what `read` is called with, in the natural order of the data: file names, ranges, ids.
        read: yields the rows of a block, always the same.
        counts: how many rows each block has, if that is known.

    Raises:
        ValueError: there are not as many counts as blocks.
    """

    def __init__(
        self, blocks: Sequence[Any], read: Callable[[Any], Iterable[Any]], counts: Sequence[int] | None = None
    ) -> None:
        if counts is not None and len(counts) != len(blocks):
            raise ValueError(f"counts must be one for each of the {len(blocks)} blocks, got {len(counts)}.")
        known: Sequence[int | None] = [None] * len(blocks) if counts is None else counts
        self._keys = list(blocks)
        self._blocks = [Block(str(key), i, None, n) for i, (key, n) in enumerate(zip(self._keys, known, strict=True))]
        self._read = read

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def versions(self) -> list[FileVersion]:
        return []

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        rows = islice(self._read(self._keys[block.start]), first_row, None)
        while objects := list(islice(rows, _ROWS_AT_ONCE)):
            yield ObjectRows(objects)

    def describe(self) -> dict[str, Any]:
        return {"format": "your own", "blocks": len(self._blocks)}
