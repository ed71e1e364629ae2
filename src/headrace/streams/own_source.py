"""A user's own source: a list of blocks, and a function that reads one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from headrace.base.errors import RecordError, check_count
from headrace.sources.chunks import ObjectChunk, skip_rows
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

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
