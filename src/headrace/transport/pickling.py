"""Any object as bytes: what is large goes to shared memory, the rest into one message."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any

from headrace.base.optional import loaded
from headrace.frameworks.framework import Array
from headrace.transport.arena import WORTH_SHARING, BlockRef, LoaderArena, WorkerArena

_HEADER = struct.Struct("<qII")  # the task's number, how many blocks, whether the last one is the pickle itself
_REF = struct.Struct("<IQQ")


def encode(number: int, value: Any, arena: WorkerArena) -> bytes:
    """A message that `decode` turns into an equal value on the loader's side.

    Raises:
        Exception: `value` cannot be pickled, by cloudpickle neither.
    """
    refs: list[BlockRef] = []

    def share(buffer: pickle.PickleBuffer) -> bool:
        """Whether the buffer stays in the message."""
        raw = buffer.raw()
        ref = arena.send(raw) if raw.nbytes >= WORTH_SHARING else None
        if ref is None:
            return True
        refs.append(ref)
        return False

    try:
        stream = _pickle(value, share)
    except Exception:  # noqa: BLE001 (lambdas, local classes, things from a script)
        _take_back(refs, arena)
        try:
            stream = _cloudpickle(value, share)
        except Exception:
            _take_back(refs, arena)
            raise
    is_shared = 0
    if len(stream) > WORTH_SHARING:
        ref = arena.send(memoryview(stream))
        if ref is not None:
            refs.append(ref)
            stream, is_shared = b"", 1
    head = _HEADER.pack(number, len(refs), is_shared)
    return b"".join([head, *[_REF.pack(*ref) for ref in refs], stream])


def _take_back(refs: list[BlockRef], arena: WorkerArena) -> None:
    for ref in refs:
        arena.take_back(ref)
    refs.clear()


def decode(message: memoryview, arena: LoaderArena) -> Any:
    """The value of a message. The caller has read its number with `number_of`.

    Raises:
        Exception: the value cannot be rebuilt here.
    """
    _, n_refs, is_shared = _HEADER.unpack_from(message)
    if not n_refs:
        return pickle.loads(message[_HEADER.size :])
    refs = [BlockRef(*_REF.unpack_from(message, _HEADER.size + i * _REF.size)) for i in range(n_refs)]
    leases: list[Array] = [arena.lease(ref) for ref in refs]
    stream: Any = leases.pop() if is_shared else message[_HEADER.size + n_refs * _REF.size :]
    return pickle.loads(stream, buffers=leases)


def discard(message: memoryview, arena: LoaderArena) -> None:
    """Give back the blocks of a message that nobody wants."""
    _, n_refs, _ = _HEADER.unpack_from(message)
    for i in range(n_refs):
        arena.release(BlockRef(*_REF.unpack_from(message, _HEADER.size + i * _REF.size)))


def number_of(message: memoryview) -> int:
    """The number of the task that a message is about."""
    number: int = _HEADER.unpack_from(message)[0]
    return number


def _pickle(value: Any, share: Callable[[pickle.PickleBuffer], bool]) -> bytes:
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, 5, buffer_callback=share)
    torch = loaded("torch")
    if torch is not None:
        from headrace.frameworks.torch_transport import reduce_tensor

        pickler.dispatch_table = {torch.Tensor: reduce_tensor}
    pickler.dump(value)
    return stream.getvalue()


def _cloudpickle(value: Any, share: Callable[[pickle.PickleBuffer], bool]) -> bytes:
    import cloudpickle

    stream = io.BytesIO()
    cloudpickle.CloudPickler(stream, 5, buffer_callback=share).dump(value)
    return stream.getvalue()
