"""A source in memory, whose blocks are lists, and whose reading may fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace import DataLoader, Stream
from headrace.sources.chunks import ObjectChunk
from headrace.sources.source import Block, FileVersion, OnBad
from headrace.streams.stream import Recipe


class Memory:
    """A block for each list.

    Args:
        failures: how often reading a block fails, by its number, before it works.
    """

    def __init__(self, lists: list[list[Any]], failures: Mapping[int, int] | None = None) -> None:
        self._lists = lists
        self._failures = dict(failures or {})

    def blocks(self) -> list[Block]:
        return [Block("memory", i, i + 1) for i in range(len(self._lists))]

    def versions(self) -> list[FileVersion]:
        return []

    def describe(self) -> dict[str, Any]:
        return {}

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[ObjectChunk]:
        if self._failures.get(block.start, 0):
            self._failures[block.start] -= 1
            raise OSError("the store is away")
        yield ObjectChunk(self._lists[block.start][first_row:], "value")


def in_memory(n_rows: int, per_block: int, failures: Mapping[int, int] | None = None) -> Stream:
    """The numbers below `n_rows`, so many in a block, of which nobody knows how many there are."""
    numbers = list(range(n_rows))
    lists = [numbers[start : start + per_block] for start in range(0, n_rows, per_block)]
    return Stream(Recipe(Memory(lists, failures)))


def outcomes(loader: DataLoader[Any], most: int = 30) -> list[Any]:
    """Batches, and the names of the errors that came instead, until the epoch ends."""
    seen: list[Any] = []
    with loader:
        batches = iter(loader)
        for _ in range(most):
            try:
                seen.append(next(batches))
            except StopIteration:
                return seen
            except Exception as error:  # noqa: BLE001 (whatever it is, its name is compared)
                seen.append(type(error).__name__)
    raise AssertionError(f"the epoch does not end: {seen}")
