"""Several messages as one: so the other side wakes up once for all of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from headrace.transport.arena import WORTH_SHARING, BlockRef, LoaderArena, WorkerArena
from headrace.transport.pickling import BUNDLE, HEADER, REF, Message
from headrace.transport.ring import Buffer


class Bundle:
    """Collects messages. They are copied at once, into a block of the arena if there is room.

    Args:
        n_bytes: for how many there is room.
    """

    def __init__(self, arena: WorkerArena, n_bytes: int) -> None:
        self._arena = arena
        self._memory = memoryview(b"")  # until the first message comes
        self._size = n_bytes
        self._ends = array("Q", [0])
        self.n_bytes = 0

    def __len__(self) -> int:
        """How many messages it has."""
        return len(self._ends) - 1

    def add(self, message: Sequence[Buffer]) -> bool:
        """Whether there was room for these parts of a message."""
        if not self._memory:
            self._memory = self._get_memory()
        memory, end = self._memory, self.n_bytes
        for part in message:
            start = end
            end += len(part)
            if end > self._size:
                return False
            memory[start:end] = part
        self.n_bytes = end
        self._ends.append(end)
        return True

    def _get_memory(self) -> memoryview:
        block: Any = self._arena.take(self._size)
        return memoryview(bytearray(self._size) if block is None else block)

    def pack(self, *, may_share: bool = True) -> list[Buffer]:
        """The parts of one message, which `cut_bundle` takes apart; they are right until something else is added.

        Args:
            may_share: whether a reference may be sent instead of the messages.
        """
        content = self._memory[: self.n_bytes]
        shared = self._arena.send(content) if may_share and self.n_bytes >= WORTH_SHARING else None
        ends = self._ends[1:].tobytes()
        del self._ends[1:]
        self.n_bytes = 0
        if shared is None:
            return [HEADER.pack(len(ends) // 8, BUNDLE, 0, False) + ends, content]
        self._memory = memoryview(b"")  # that block is the loader's now
        return [HEADER.pack(len(ends) // 8, BUNDLE, 1, True) + REF.pack(*shared) + ends]


def cut_bundle(header: Message, bundle: memoryview, arena: LoaderArena) -> Iterator[memoryview]:
    """The messages again."""
    start = HEADER.size + header.n_refs * REF.size
    stop = start + 8 * header.number
    content: Any = bundle[stop:]
    if header.is_shared:
        content = memoryview(arena.lease(BlockRef(*REF.unpack_from(bundle, HEADER.size))))  # type: ignore[arg-type]
    for begin, end in pairwise([0, *array("Q", bytes(bundle[start:stop]))]):
        yield content[begin:end]
