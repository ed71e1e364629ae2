"""Messages in shared memory: the worker writes one after the other, the loader reads them in the same order.

A socket tells the loader where each one lies, so that both sides see memory in the right order; but it copies nothing
of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class RingWriter:
    """The worker's side.

    Args:
        taken: its only number is how many messages the loader is done with; both sides see it.
    """

    def __init__(self, memory: memoryview, taken: memoryview) -> None:
        self._memory = memory
        self._taken = taken
        self._put = 0  # messages
        self._starts: deque[int] = deque()  # of those that the loader may still read
        self._end = 0  # of the last one

    def put(self, parts: Sequence[Buffer], n_bytes: int) -> int | None:
        """Where the message lies that these parts, of so many bytes together, make up. None if there is no room."""
        start = self._find_room(n_bytes)
        if start is None:
            return None
        end = start
        for part in parts:
            begin, end = end, end + len(part)
            self._memory[begin:end] = part
        self._starts.append(start)
        self._end = end
        self._put += 1
        return start

    def _find_room(self, n_bytes: int) -> int | None:
        starts, end = self._starts, self._end
        for _ in range(len(starts) - self._put + self._taken[0]):
            starts.popleft()
        if not starts:  # all has been read: memory that was used just now is still in the cache
            return 0 if n_bytes <= len(self._memory) else None
        if end <= starts[0]:
            return end if n_bytes < starts[0] - end else None
        if n_bytes <= len(self._memory) - end:
            return end
        return 0 if n_bytes < starts[0] else None


class RingReader:
    """The loader's side."""

    def __init__(self, memory: memoryview, taken: memoryview) -> None:
        self._memory = memory
        self._taken = taken

    def take(self, start: int, n_bytes: int) -> bytes:
        """The message that lies there, which must be the next one in the order of writing."""
        message = bytes(self._memory[start : start + n_bytes])
        self._taken[0] += 1
        return message
