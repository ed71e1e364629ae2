"""Values and tasks as bytes: what is large goes to shared memory, the rest into one message.

Tasks that headrace plans itself, and lists of strings and bytes, are packed by hand: pickle takes far longer.
"""

from __future__ import annotations

import copyreg
import marshal
import pickle
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from headrace.base.lazy_column import Allocate, Columns, LazyColumn
from headrace.base.messages import LazyBatch, PackedIndices, Place, PlacedKeys, Pull, Task
from headrace.frameworks.framework import Array, tensor_type
from headrace.frameworks.numpy_arrays import reduce_array
from headrace.transport.shared_memory import WORTH_SHARING, BlockRef, Buffer, LoaderArena, WorkerArena


class PackedBytes:
    """They lie side by side in memory, which may be shared. It unpickles as a list of them.

    Args:
        lengths: of each, as 64-bit numbers.
        memory: a buffer.
    """

    __slots__ = ("lengths", "memory")

    def __init__(self, lengths: bytes, memory: Any) -> None:
        self.lengths = lengths
        self.memory = memory

    def __reduce__(self) -> Any:
        return unpack_bytes, (self.lengths, pickle.PickleBuffer(self.memory))


def unpack_bytes(lengths: Any, memory: Any) -> list[bytes]:
    """The list again."""
    return list(layout_of(bytes(lengths)).unpack_from(memory))


@lru_cache(maxsize=16)
def layout_of(lengths: bytes) -> struct.Struct:
    """The layout of values of these lengths, side by side."""
    return struct.Struct("%ds" * (len(lengths) // 8) % tuple(array("Q", lengths)))


_FEWEST = 16  # strings, for which looking at them is worth it
_MOST_FIELDS = 64  # of a batch that are looked at
_LONG = 512  # bytes on average, above which they are copied into shared memory at once


def pack_lists(batch: Any, allocate: Allocate) -> Any:
    """The batch, whose lists of `str` and `bytes` are packed; it itself may be one, or have some as its fields.

    Pickling what this gives, and unpickling that, makes an equal batch. The batch itself is not changed.
    """
    kind = type(batch)
    if isinstance(batch, Columns):
        return batch.packed(lambda column: _pack_column(column, allocate))
    if kind is list:
        packed = _pack_nested(batch) if batch and type(batch[0]) is list else _pack(batch, allocate)
        if packed is not batch:
            return packed
    if kind in (list, tuple) and len(batch) <= _MOST_FIELDS:
        fields = [_pack_fields(field, allocate) for field in batch]
        return kind(fields) if any(a is not b for a, b in zip(fields, batch, strict=True)) else batch
    return _pack_fields(batch, allocate)


def _pack_fields(fields: Any, allocate: Allocate) -> Any:
    """The same, packed if it is a list of `str` or `bytes`, or a dict that has some."""
    if type(fields) is not dict or len(fields) > _MOST_FIELDS:
        return _pack(fields, allocate)
    packed = {name: _pack(field, allocate) for name, field in fields.items()}
    return packed if any(packed[name] is not fields[name] for name in packed) else fields


def _pack_nested(lists: list[Any]) -> Any:
    """Several lists of strings: tokens."""
    if not all(type(items) is list for items in lists):
        return lists
    try:
        for items in lists:
            "".join(items)
        return PackedStrings(marshal.dumps(lists))
    except (TypeError, ValueError, MemoryError):
        return lists


def _pack_column(column: Any, allocate: Allocate) -> Any:
    packed = _pack(column, allocate)
    return packed if packed is column else PackedColumn(len(column), *packed.__reduce__())


def _pack(items: Any, allocate: Allocate) -> Any:
    if type(items) is not list or len(items) < _FEWEST:
        return items
    kind = type(items[0])
    if kind is str:
        return _pack_strings(items)
    if kind is not bytes or [*map(type, items)].count(bytes) != len(items):
        return items
    lengths = array("Q", map(len, items)).tobytes()
    layout = layout_of(lengths)
    if layout.size >= _LONG * len(items):
        memory: Any = allocate((layout.size,), np.dtype(np.uint8))
        layout.pack_into(memory, 0, *items)
        return PackedBytes(lengths, memory)
    return PackedStrings(marshal.dumps(items))


def _pack_strings(items: list[Any]) -> Any:
    """Packed, if they are strings. Marshal itself refuses those of a class of their own."""
    try:
        # `startswith` refuses all that are no strings, up to an empty one, with which "" starts: the quickest look.
        if "".startswith(tuple(items)):
            "".join(items)
        return PackedStrings(marshal.dumps(items))
    except (TypeError, ValueError, MemoryError):
        return items


class PackedStrings:
    """Only Python's own types are in it, and both sides are the same Python: so marshal is right, and quick."""

    __slots__ = ("dumped",)

    def __init__(self, dumped: bytes) -> None:
        self.dumped = dumped

    def __reduce__(self) -> Any:
        return unpack_strings, (pickle.PickleBuffer(self.dumped),)


unpack_strings = marshal.loads


@final
class PackedColumn(LazyColumn):
    """A list that is unpacked when the first of its items are wanted."""

    __slots__ = ("_args", "_items", "_length", "_unpack")

    def __init__(self, length: int, unpack: Callable[..., list[Any]], args: tuple[Any, ...]) -> None:
        self._length = length
        self._unpack = unpack
        self._args = args
        self._items: list[Any] | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: slice) -> list[Any]:
        return self.materialize()[rows]

    def materialize(self) -> list[Any]:
        if self._items is None:
            self._items, self._args = self._unpack(*self._args), ()
        return self._items

    def __reduce__(self) -> Any:
        return PackedColumn, (self._length, self._unpack, self._args)


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
            stream = cloudpickle_parts(value, share)
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


def seal(header: Message, message: memoryview, arena: LoaderArena) -> LazyBatch:
    """The value of a message, to be unpacked once, whenever it is wanted; its blocks are leased from now on.

    Calling it raises what unpickling raises, where the value cannot be rebuilt.
    """
    n_refs = header.n_refs
    if not n_refs:
        return LazyBatch(unpack_strings if header.kind == STRINGS else pickle.loads, message[HEADER.size :])
    if header.kind in (STRINGS, BYTES):
        lease: Any = arena.lease(BlockRef(*REF.unpack_from(message, HEADER.size)))
        if header.kind == STRINGS:
            return LazyBatch(unpack_strings, lease)
        return LazyBatch(unpack_bytes, message[HEADER.size + REF.size :], lease)
    refs = [BlockRef(*REF.unpack_from(message, HEADER.size + i * REF.size)) for i in range(n_refs)]
    leases: list[Array] = [arena.lease(ref) for ref in refs]
    stream: Any = leases.pop() if header.is_shared else message[HEADER.size + n_refs * REF.size :]
    return LazyBatch(pickle.loads, stream, buffers=leases)


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


def cloudpickle_parts(
    value: Any, share: Callable[[pickle.PickleBuffer], bool], reducers: Mapping[type, Any] | None = None
) -> list[Buffer]:
    """The same, where only cloudpickle knows how.

    Args:
        reducers: how some types are pickled, instead of as usual.
    """
    import cloudpickle

    pickler = cloudpickle.CloudPickler
    if reducers:  # its table is an attribute of the class, which an instance's would not override
        pickler = type("Pickler", (pickler,), {"dispatch_table": {**pickler.dispatch_table, **reducers}})
    file = _Parts()
    pickler(file, 5, buffer_callback=share).dump(value)
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
        from headrace.frameworks.torch_tensors import reduce_tensor

        _reducers[tensor] = reduce_tensor
    return _reducers


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


_PICKLED, _INDICES, _PULL, _PLACED, _PULLS = range(5)
_HEAD = struct.Struct("<Bqqq")  # kind, the task's number, its lane, how many samples a pull asks for
_PLACE = struct.Struct("<qqq")


def pack_message(message: Any) -> bytes:
    """The bytes of a `Task`, `BeginEpoch` or `Stop`.

    Raises:
        Exception: a key cannot be pickled, by cloudpickle neither.
    """
    if type(message) is Task and not message.leave_out:
        keys = message.keys
        if type(keys) is PackedIndices:
            return _HEAD.pack(_INDICES, message.number, message.worker, 0) + keys.array.tobytes()
        if type(keys) is PlacedKeys and type(keys.keys) is PackedIndices and keys.place.start < 2**63:
            head = _HEAD.pack(_PLACED, message.number, message.worker, 0)
            return b"".join([head, _PLACE.pack(*keys.place), keys.keys.array.tobytes()])
        if type(keys) is Pull:
            return _HEAD.pack(_PULL, message.number, message.worker, -1 if keys.count is None else keys.count)
    return bytes([_PICKLED]) + _pickle(message)


def pack_pulls(tasks: Sequence[Task]) -> bytes:
    """The bytes of several tasks of one worker that all ask for the same `Pull`."""
    keys, lane = tasks[0].keys, tasks[0].worker
    head = _HEAD.pack(_PULLS, len(tasks), lane, -1 if keys.count is None else keys.count)
    return head + array("q", [task.number for task in tasks]).tobytes()


def unpack_messages(message: memoryview) -> list[Any]:
    """The messages of these bytes."""
    kind = message[0]
    if kind == _PICKLED:
        return [pickle.loads(message[1:])]
    if kind != _PULLS:
        return [_unpack_task(kind, message)]
    _, _, lane, count = _HEAD.unpack_from(message)
    pull = _pull(count)
    return [Task(number, pull, lane) for number in array("q", bytes(message[_HEAD.size :]))]


def _unpack_task(kind: int, message: memoryview) -> Task:
    _, number, lane, count = _HEAD.unpack_from(message)
    if kind == _PULL:
        return Task(number, _pull(count), lane)
    start = _HEAD.size if kind == _INDICES else _HEAD.size + _PLACE.size
    indices = PackedIndices(np.frombuffer(message, np.int64, offset=start).copy())  # a copy may be written to
    if kind == _INDICES:
        return Task(number, indices, lane)
    return Task(number, PlacedKeys(indices, Place(*_PLACE.unpack_from(message, _HEAD.size))), lane)


@lru_cache
def _pull(count: int) -> Pull:
    return Pull(None if count < 0 else count)


def _pickle(message: Any) -> bytes:
    try:
        return pickle.dumps(message, 5)
    except Exception:  # noqa: BLE001 (keys of a type that only cloudpickle can send)
        import cloudpickle

        dumped: bytes = cloudpickle.dumps(message)
        return dumped
