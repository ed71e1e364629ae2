"""Several messages as one: so the other side wakes up once for all of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from headrace.transport.arena import BlockRef, LoaderArena, WorkerArena
from headrace.transport.pickling import BUNDLE, HEADER, REF, Message
from headrace.transport.ring import Buffer


class Bundle:
    """Collects messages. They are copied at once into memory that is used again and again, and stays in the cache.

    Args:
        n_bytes: for how many there is room.
    """

    def __init__(self, n_bytes: int) -> None:
        self._memory = memoryview(bytearray(n_bytes))
        self._ends = array("Q", [0])

    def __len__(self) -> int:
        """How many messages it has."""
        return len(self._ends) - 1

    @property
    def n_bytes(self) -> int:
        return self._ends[-1]

    def add(self, message: Sequence[Buffer]) -> bool:
        """Whether there was room for these parts of a message."""
        end = self._ends[-1]
        for part in message:
            start, end = end, end + len(part)
            if end > len(self._memory):
                return False
            self._memory[start:end] = part
        self._ends.append(end)
        return True

    def pack(self, arena: WorkerArena | None) -> list[Buffer]:
        """The parts of one message, which `cut_bundle` takes apart; they are right until something else is added.

        Args:
            arena: where the messages may be put.
        """
        content = self._memory[: self.n_bytes]
        shared = None if arena is None else arena.send_parts([content])
        ends = self._ends[1:].tobytes()
        del self._ends[1:]
        if shared is None:
            return [HEADER.pack(len(ends) // 8, BUNDLE, 0, False) + ends, content]
        return [HEADER.pack(len(ends) // 8, BUNDLE, 1, True) + REF.pack(*shared) + ends]


def cut_bundle(header: Message, bundle: memoryview, arena: LoaderArena) -> list[memoryview]:
    """The messages again."""
    start = HEADER.size + header.n_refs * REF.size
    stop = start + 8 * header.number
    content: Any = bundle[stop:]
    if header.is_shared:
        content = memoryview(arena.lease(BlockRef(*REF.unpack_from(bundle, HEADER.size))))  # type: ignore[arg-type]
    ends = array("Q", bytes(bundle[start:stop]))
    return [content[begin:end] for begin, end in pairwise([0, *ends])]
