"""The last bytes of every message from a worker process: when the batch in it was made, or that it has several."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct

from headrace.base.messages import Span

_TIMES = Struct("<6q?2qI")  # the times of a span, and how many bytes before them are the ends of its samples
_UNTIMED, _TIMED, _GROUP = b"\0", b"\1", b"\2"
_COUNT = Struct("<I")


def pack_trailer(span: Span | None, packed: int = 0) -> bytes:
    """What is sent after a message.

    Args:
        packed: when the batch was ready to be sent.
    """
    if span is None:
        return _UNTIMED
    times = _TIMES.pack(
        span.begun,
        span.collating,
        span.made,
        packed,
        span.cpu,
        span.n_samples,
        span.is_extra,
        span.slowest,
        span.slowest_ns,
        len(span.ends),
    )
    return b"".join((span.ends, times, _TIMED))


def pack_group_trailer(numbers: Sequence[int]) -> bytes:
    """What is sent after a message that has the batches of these tasks in it."""
    return b"".join((array("q", numbers).tobytes(), _COUNT.pack(len(numbers)), _GROUP))


def cut_trailer(message: memoryview) -> tuple[memoryview, Span | None, Sequence[int]]:
    """The message without its trailer, when its batch was made, and the tasks of its batches if there are several."""
    kind = message[-1]
    if not kind:
        return message[:-1], None, ()
    if kind == _GROUP[0]:
        end = len(message) - 1 - _COUNT.size
        start = end - 8 * _COUNT.unpack_from(message, end)[0]
        return message[:start], None, array("q", bytes(message[start:end]))
    start = len(message) - 1 - _TIMES.size
    *times, n_bytes = _TIMES.unpack_from(message, start)
    ends = bytes(message[start - n_bytes : start])
    return message[: start - n_bytes], Span._make((*times, ends)), ()
