"""What arrives from a worker process. Batches stay sealed until they are given out."""

from __future__ import annotations

from dataclasses import replace

from headrace.base.messages import Failed, Finished
from headrace.engines.outbox import Report
from headrace.engines.stopwatch import cut_trailer
from headrace.transport.encoding import BUNDLE, OTHER, cut_bundle, read_header, seal
from headrace.transport.shared_memory import LoaderArena


def take_apart(message: memoryview, arena: LoaderArena) -> list[Finished] | Report:
    """The batches of a message, or what else it says."""
    body, span = cut_trailer(message)
    header = read_header(body)
    if header.kind == BUNDLE:
        return [_finished(part, arena) for part in cut_bundle(header, body, arena)]
    sealed = seal(header, body, arena)
    if header.kind != OTHER:
        return [Finished(header.number, sealed, (), None, None, span)]
    try:
        report: Report = sealed()
    except Exception as error:  # noqa: BLE001 (an object that cannot be rebuilt here)
        return Report(Failed(header.number, error))
    if span is not None:
        return replace(report, message=report.message._replace(span=span))
    return report


def _finished(message: memoryview, arena: LoaderArena) -> Finished:
    """The batch of a message that was in a bundle, where none has a trailer."""
    header = read_header(message)
    return Finished(header.number, seal(header, message, arena))
