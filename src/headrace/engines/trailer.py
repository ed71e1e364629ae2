"""The last bytes of every message from a worker process: when the batch in it was made."""

from __future__ import annotations

from struct import Struct

from headrace.base.messages import Span

_TIMES = Struct("<6q?2qI")  # the times of a span, and how many bytes before them are the ends of its samples
_UNTIMED, _TIMED = b"\0", b"\1"


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


def cut_trailer(message: memoryview) -> tuple[memoryview, Span | None]:
    """The message without its trailer, and when its batch was made."""
    if not message[-1]:
        return message[:-1], None
    start = len(message) - 1 - _TIMES.size
    *times, n_bytes = _TIMES.unpack_from(message, start)
    ends = bytes(message[start - n_bytes : start])
    return message[: start - n_bytes], Span._make((*times, ends))
