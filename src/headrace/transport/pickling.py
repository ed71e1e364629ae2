"""Any object as bytes: what is large goes to shared memory, the rest into one message."""

from __future__ import annotations

import copyreg
import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headrace.base.messages import Sealed
from headrace.base.packed_bytes import PackedBytes, unpack_bytes
from headrace.frameworks.array_transport import reduce_array
from headrace.frameworks.framework import Array, tensor_type
from headrace.transport.arena import WORTH_SHARING, BlockRef, LoaderArena, WorkerArena
from headrace.transport.lists import PackedStrings, unpack_strings
from headrace.transport.ring import Buffer

# The task's number, what the value is, how many blocks, whether the last one is the pickle itself.
HEADER = struct.Struct("<qBIB")
REF = struct.Struct("<IQQ")


OTHER, BATCH, STRINGS, BYTES, BUNDLE = range(5)


class Message(NamedTuple):
    """What a message says of itself before it is decoded.

    Attributes:
        number: of the task that it is about; of a bundle, how many messages it has.
        kind: whether its value is the batch of that task, one of strings or of bytes only, or something else; or
            whether it is a bundle of messages.
        n_refs: how many references to blocks follow.
        is_shared: whether the last of them is the pickle itself.
    """

    number: int
    kind: int
    n_refs: int = 0
    is_shared: bool = False


def encode(number: int, kind: int, value: Any, arena: WorkerArena) -> list[Buffer]:
    """The parts of a message about task `number` that `seal` turns into an equal value on the loader's side.

    Raises:
        Exception: `value` cannot be pickled, by cloudpickle neither.
    """
    if type(value) is PackedStrings:
        shared = None if len(value.dumped) < WORTH_SHARING else arena.send_parts([value.dumped])
        if shared is not None:
            return [HEADER.pack(number, STRINGS, 1, True) + REF.pack(*shared)]
        return [HEADER.pack(number, STRINGS, 0, False), value.dumped]
    if type(value) is PackedBytes:
        shared = arena.send(memoryview(value.memory))
        if shared is not None:
            return [HEADER.pack(number, BYTES, 1, False) + REF.pack(*shared), value.lengths]
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
        stream = pickle_parts(value, share)
    except Exception:  # noqa: BLE001 (lambdas, local classes, things from a script)
        _take_back(refs, arena)
        try:
            stream = _cloudpickle(value, share)
        except Exception:
            _take_back(refs, arena)
            raise
    ref = arena.send_parts(stream)
    if ref is not None:
        refs.append(ref)
        stream = []
    head = HEADER.pack(number, kind, len(refs), ref is not None)
    return [b"".join([head, *[REF.pack(*ref) for ref in refs]]) if refs else head, *stream]


def _take_back(refs: list[BlockRef], arena: WorkerArena) -> None:
    for ref in refs:
        arena.take_back(ref)
    refs.clear()


def read_header(message: memoryview) -> Message:
    """What a message is about."""
    return Message(*HEADER.unpack_from(message))


def seal(header: Message, message: memoryview, arena: LoaderArena) -> Sealed:
    """The value of a message, to be unpacked once, whenever it is wanted; its blocks are leased from now on.

    Calling it raises what unpickling raises, where the value cannot be rebuilt.
    """
    n_refs = header.n_refs
    if not n_refs:
        return Sealed(unpack_strings if header.kind == STRINGS else pickle.loads, message[HEADER.size :])
    if header.kind in (STRINGS, BYTES):
        lease: Any = arena.lease(BlockRef(*REF.unpack_from(message, HEADER.size)))
        if header.kind == STRINGS:
            return Sealed(unpack_strings, lease)
        return Sealed(unpack_bytes, message[HEADER.size + REF.size :], lease)
    refs = [BlockRef(*REF.unpack_from(message, HEADER.size + i * REF.size)) for i in range(n_refs)]
    leases: list[Array] = [arena.lease(ref) for ref in refs]
    stream: Any = leases.pop() if header.is_shared else message[HEADER.size + n_refs * REF.size :]
    return Sealed(pickle.loads, stream, buffers=leases)


class _Parts:
    """A file that keeps what is written to it as it is, without a copy."""

    def __init__(self) -> None:
        self._written: list[Any] = []
        self.write = self._written.append

    def parts(self) -> list[Buffer]:
        return [part if type(part) is bytes else pickle.PickleBuffer(part).raw() for part in self._written]


def pickle_parts(value: Any, share: Callable[[pickle.PickleBuffer], Any]) -> list[Buffer]:
    """The pickle of a value in parts; `share` gets its buffers, and says whether they stay in the pickle."""
    file: Any = _Parts()
    pickler = pickle.Pickler(file, 5, buffer_callback=share)
    pickler.dispatch_table = _known_reducers()
    pickler.dump(value)
    parts: list[Buffer] = file.parts()
    return parts


def _cloudpickle(value: Any, share: Callable[[pickle.PickleBuffer], bool]) -> list[Buffer]:
    import cloudpickle

    file = _Parts()
    cloudpickle.CloudPickler(file, 5, buffer_callback=share).dump(value)
    return file.parts()


_reducers: dict[type, Callable[[Any], Any]] = {}
_registered = -1  # how many reducers `copyreg` had when these were collected


def _known_reducers() -> dict[type, Callable[[Any], Any]]:
    """How types are pickled: as everybody has registered them, and arrays and tensors faster than by themselves."""
    global _reducers, _registered
    if len(copyreg.dispatch_table) != _registered:
        _registered = len(copyreg.dispatch_table)
        _reducers = {**copyreg.dispatch_table, np.ndarray: reduce_array}
    tensor = tensor_type()
    if tensor is not None and tensor not in _reducers:
        from headrace.frameworks.torch_transport import reduce_tensor

        _reducers[tensor] = reduce_tensor
    return _reducers
