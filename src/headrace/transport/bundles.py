"""Several messages as one: so the other side wakes up once for all of them."""

from __future__ import annotations

from array import array
from itertools import accumulate, chain, pairwise
from typing import Any

from headrace.transport.arena import BlockRef, LoaderArena, WorkerArena
from headrace.transport.pickling import BUNDLE, HEADER, REF, Message
from headrace.transport.ring import Buffer


def pack_bundle(messages: list[list[Buffer]], arena: WorkerArena | None) -> list[Buffer]:
    """The parts of one message that `cut_bundle` takes apart.

    Args:
        messages: each in parts.
        arena: where they may lie.
    """
    lengths = array("Q", [sum([len(part) for part in message]) for message in messages]).tobytes()
    parts = [*chain.from_iterable(messages)]
    ref = None if arena is None else arena.send_parts(parts)
    if ref is None:
        return [HEADER.pack(len(messages), BUNDLE, 0, False) + lengths, *parts]
    return [HEADER.pack(len(messages), BUNDLE, 1, True) + REF.pack(*ref) + lengths]


def cut_bundle(header: Message, bundle: memoryview, arena: LoaderArena) -> list[memoryview]:
    """The messages again."""
    start = HEADER.size + header.n_refs * REF.size
    end = start + 8 * header.number
    lengths = array("Q", bytes(bundle[start:end]))
    content = bundle[end:]
    if header.is_shared:
        lease: Any = arena.lease(BlockRef(*REF.unpack_from(bundle, HEADER.size)))
        content = memoryview(lease)
    return [content[begin:end] for begin, end in pairwise(accumulate(lengths, initial=0))]
