"""What arrives from a worker process. Batches stay sealed until they are given out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.base.messages import Failed, Finished, Sealed
from headrace.engines.outbox import Report
from headrace.engines.trailer import cut_trailer
from headrace.transport.arena import LoaderArena
from headrace.transport.pickling import OTHER, decoder, read_header


def take_apart(message: memoryview, arena: LoaderArena) -> list[Finished] | Report:
    """The batches of a message, or what else it says."""
    body, span, numbers = cut_trailer(message)
    header = read_header(body)
    decode = decoder(header, body, arena)
    if numbers:
        group = _Group(decode)
        return [Finished(number, Sealed(partial(group.open, i))) for i, number in enumerate(numbers)]
    if header.kind != OTHER:
        return [Finished(header.number, Sealed(decode), (), None, None, span)]
    try:
        report: Report = decode()
    except Exception as error:  # noqa: BLE001 (an object that cannot be rebuilt here)
        return Report(Failed(header.number, error))
    if span is not None:
        return replace(report, message=report.message._replace(span=span))
    return report


class _Group:
    """Batches that came in one message, and are unpacked together when the first of them is wanted."""

    def __init__(self, decode: Callable[[], list[Any]]) -> None:
        self._decode = decode
        self._batches: list[Any] | None = None

    def open(self, i: int) -> Any:
        """The batch with this place in the message."""
        if self._batches is None:
            self._batches = self._decode()
            del self._decode  # and the memory that it has leased
        return self._batches[i]
