"""Batches on a device: copied ahead of time on a stream of their own, and safe to use when they arrive."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.base.containers import map_leaves
from headrace.base.endings import Keeper, Patience
from headrace.base.errors import WarnOnce
from headrace.base.interrupts import hold_interrupts
from headrace.base.optional import import_extra
from headrace.frameworks.page_locks import PageLocks
from headrace.frameworks.torch_tensors import current_accelerator

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "Moving batches to a device")


class DeviceCopier(Protocol):
    """Moves batches to a device in two steps, which may run in two threads.

    Everything with a method `to` is moved: tensors, packed sequences, batches of other libraries; so is what the fields
    of dataclasses hold. Other things stay.
    """

    @property
    def worth_a_thread(self) -> bool:
        """Whether the first step takes time that the consumer could use."""

    def copy(self, batch: Any) -> Any:
        """Send a batch on its way."""

    def arrive(self, on_its_way: Any) -> Any:
        """The batch, ready for whatever the calling thread does next."""


def device_copier(device: Any, depth: int = 2) -> DeviceCopier:
    """What moves batches to `device`; called by the consumer, whose current device completes a bare "cuda".

    Args:
        depth: how many batches may be on their way, or wait on the device.

    Raises:
        RuntimeError, AssertionError, TypeError: torch does not know the device, or cannot use it here.
    """
    device = parse_device(device)
    try:
        device = torch.empty(0, device=device).device
    except Exception as error:
        raise _explained(error, device) from error
    streams = _streams_of(device)
    return PlainCopier(device) if streams is None else StreamCopier(device, streams, depth, _page_locks(device))


def parse_device(device: Any) -> torch.device:
    """The device, checked as far as that goes without initialising it, after which one could not fork.

    Raises:
        RuntimeError, TypeError: torch does not know it.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _explained(error, device) from error


def thread_settings(device: Any = None) -> Callable[[], None]:
    """What a thread that handles tensors calls first, as torch's pinning thread does; made by the consumer.

    Copies in the thread use one core; its current device is `device`, or else the consumer's.
    """
    device = parse_device((current_accelerator() or "cpu") if device is None else device)
    set_device = _device_setter(device)
    n_threads = torch.get_num_threads()

    def begin() -> None:
        _use_one_core(n_threads)
        if set_device is not None:
            set_device()

    return begin


def _use_one_core(n_threads: int) -> None:
    """Let torch use one core in this thread only: `set_num_threads` counts for threads that are started later, too."""
    torch.get_num_threads()  # or this thread would begin with the number that is set below
    torch.set_num_threads(1)
    restoring = threading.Thread(target=torch.set_num_threads, args=(n_threads,), daemon=True)
    restoring.start()
    restoring.join()


def _device_setter(device: torch.device) -> Callable[[], None] | None:
    """What makes the device, or the consumer's of that kind, a thread's current one; None if there is no choice."""
    accelerator: Any = getattr(torch, "accelerator", None)
    if hasattr(accelerator, "set_device_index") and current_accelerator() == device.type:
        index = accelerator.current_device_index() if device.index is None else device.index
        return functools.partial(accelerator.set_device_index, index)
    module = _stream_module(device)
    if module is None:
        return None
    return functools.partial(module.set_device, module.current_device() if device.index is None else device.index)


class PlainCopier:
    """Copies at once; for devices without streams: the CPU, `meta`, Apple's GPUs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def worth_a_thread(self) -> bool:
        # A copy to Apple's GPUs beside training in another thread may abort the process (pytorch#197805).
        return self._device.type not in ("cpu", "meta", "mps")

    def copy(self, batch: Any) -> Any:
        return _map_batch(lambda value: _to(value, self._device), batch, is_leaf=_is_movable)

    def arrive(self, batch: Any) -> Any:
        return batch


class Event(Protocol):
    def synchronize(self) -> None:
        """Wait until the event has happened."""


class Stream(Protocol):
    def wait_event(self, event: Any) -> None:
        """Let what is queued from now on start after the event."""


class Streams(Protocol):
    """What a copier needs of a device: the calling thread's stream, and one more for copies."""

    def aside(self) -> AbstractContextManager[Any]:
        """While entered, the calling thread queues on the stream for copies."""

    def mark(self) -> Event:
        """Happens when all copies queued so far are complete."""

    def current(self) -> Stream:
        """The calling thread's own."""

    def mark_current(self) -> Event:
        """Happens when all that is queued on the calling thread's own is complete."""


@dataclass(frozen=True, eq=False)
class OnItsWay:
    """A batch whose copy is queued.

    Attributes:
        made: what was made on the stream for copies, and must not be reused before its user is done.
    """

    batch: Any
    made: tuple[Any, ...]
    event: Event


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a copy reads from, to be kept until the event."""

    event: Event
    host: Any


class StreamCopier:
    """Copies from page-locked memory on a stream of its own, so that the device computes meanwhile.

    Memory in which batches are born is locked where it is, if `locks` are given and can do so; else torch copies the
    batch into page-locked memory of its own first.

    Guarantees: what the consumer queues after `arrive` sees the whole batch; its memory on the device is not reused
    before the consumer's stream is done with it; the memory it was copied from is not released before the copy is
    complete. That of the last batch is kept until the next one is copied, or the copier goes. While at most `depth`
    batches have not arrived, at most `depth` + 2 are on the device, if the consumer keeps none but the latest: a copy
    waits until the device is done with the batches before, however far ahead of it the consumer runs.

    `copy` is for one thread, `arrive` for another or the same.
    """

    worth_a_thread = True

    def __init__(self, device: torch.device, streams: Streams, depth: int = 2, locks: PageLocks | None = None) -> None:
        self._device = device
        self._locks = locks
        self._streams = streams
        self._depth = depth
        self._sent: deque[_Sent] = deque()
        self._on_their_way: dict[int, weakref.ref[OnItsWay]] = {}  # by identity; some were dropped since
        # One event for each batch that has arrived: when it happens, the device is done with the batch before.
        self._arrivals: deque[Event] = deque()
        self._warn = WarnOnce()
        end = functools.partial(_end, self._sent, locks, device)
        with hold_interrupts():
            self._keeper = Keeper(self, end, at_exit=False)  # another thread may copy until the very end

    def copy(self, batch: Any) -> OnItsWay:
        self._wait_for_the_device()
        if self._locks is not None:
            self._locks.begin_batch()
        host = _map_batch(self._pinned, batch, is_leaf=_is_pinnable)
        made: list[Any] = []
        sources: list[Any] = []
        try:
            with self._streams.aside():
                moved = _map_batch(lambda value: self._move(value, made, sources), host, is_leaf=_is_movable)
        except BaseException:  # the rest may be on its way
            self._sent.append(_Sent(self._streams.mark(), (host, sources)))
            _release(self._sent, 0)
            raise
        event = self._streams.mark()
        self._sent.append(_Sent(event, (host, sources)))
        _release(self._sent, 1)  # the one before has been copied while this one was fetched and pinned
        on_its_way = OnItsWay(moved, tuple(made), event)
        self._on_their_way[id(on_its_way)] = weakref.ref(on_its_way)
        return on_its_way

    def _wait_for_the_device(self) -> None:
        for key, on_its_way in list(self._on_their_way.items()):
            if on_its_way() is None:
                self._on_their_way.pop(key, None)
        in_use = max(self._depth + 1 - len(self._on_their_way), 1)
        while len(self._arrivals) > in_use:
            self._arrivals[1].synchronize()
            self._arrivals.popleft()

    def _pinned(self, value: Any) -> Any:
        """The value in page-locked memory if possible: from elsewhere the copy is slower, but not wrong."""
        if not _is_pinnable(value) or (isinstance(value, torch.Tensor) and value.device.type != "cpu"):
            return value
        try:
            return value if self._is_locked(value) else value.pin_memory()
        except RuntimeError as error:  # it is sparse, or holds tensors that are on a device; or no such memory is left
            self._warn(
                f"A batch for {self._device} is copied from pageable memory, which is slower: pin_memory() of its "
                f"{type(value).__name__} raised {type(error).__name__}: {error} This is said once."
            )
            return value

    def _is_locked(self, value: Any) -> bool:
        """Whether a tensor lies in memory that is page-locked where it was born."""
        if self._locks is None or type(value) is not torch.Tensor or not value.is_contiguous():
            return False
        return self._locks.lock(value.data_ptr(), value.nbytes)

    def _move(self, value: Any, made: list[Any], sources: list[Any]) -> Any:
        if isinstance(value, torch.Tensor):
            moved = _to(value, self._device, non_blocking=True)
            if moved is not value:
                made.extend(_allocations(moved))
            return moved
        if not _is_movable(value):
            return value
        with _Witness(self._device, made, sources):
            moved = _to(value, self._device, non_blocking=True)
        if hasattr(type(moved), "record_stream"):  # then it may have memory that no tensor of torch's shows
            made.append(moved)
        return moved

    def arrive(self, on_its_way: OnItsWay) -> Any:
        stream = self._streams.current()
        self._arrivals.append(self._streams.mark_current())
        self._on_their_way.pop(id(on_its_way), None)
        stream.wait_event(on_its_way.event)
        for made in on_its_way.made:
            made.record_stream(stream)
        return on_its_way.batch


def _release(sent: deque[_Sent], n_kept: int) -> None:
    """Wait for all copies but the last few, and release what they read from."""
    while len(sent) > n_kept:
        sent[0].event.synchronize()
        sent.popleft()


def _end(sent: deque[_Sent], locks: PageLocks | None, device: torch.device, patience: Patience) -> None:
    """Wait for all copies, however little patience there is: a device must not read from memory that is gone."""
    set_device = None if device.index is None else _device_setter(device)
    if set_device is not None:
        set_device()  # or this thread would begin to use another device
    _release(sent, 0)
    if locks is not None:
        locks.close()


def _page_locks(device: torch.device) -> PageLocks | None:
    """What locks pages for a device, where its module has CUDA's functions for that."""
    cudart = getattr(getattr(torch, device.type, None), "cudart", None)
    runtime: Any = None if cudart is None else cudart()
    if not hasattr(runtime, "cudaHostRegister") or not hasattr(runtime, "cudaHostUnregister"):
        return None

    def register(address: int, n_bytes: int) -> bool:
        if int(runtime.cudaHostRegister(address, n_bytes, 0)) == 0:
            return True
        with suppress(RuntimeError):
            torch.zeros(1, device=device)  # raises the error again, which else the next kernel of this thread would
        return False

    return PageLocks(register, runtime.cudaHostUnregister)


class _ModuleStreams:
    """The streams of `torch.cuda`, `torch.xpu` and their like."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._side = _side_stream(device)

    def aside(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._module.stream(self._side)
        return context

    def mark(self) -> Event:
        return self._mark(self._side)

    def current(self) -> Stream:
        stream: Stream = self._module.current_stream(self._device)
        return stream

    def mark_current(self) -> Event:
        return self._mark(self.current())

    def _mark(self, stream: Any) -> Event:
        event: Event = self._event()
        stream.record_event(event)
        return event

    def _event(self) -> Any:
        """One whose `synchronize` sleeps, where there is one; else it would keep a core busy."""
        try:
            return self._module.Event(blocking=True)
        except TypeError:
            return self._module.Event()


class _AcceleratorStreams(_ModuleStreams):
    """The streams of any accelerator, as `torch.accelerator` has them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(torch.accelerator, device)

    def aside(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._side
        return context

    def _event(self) -> Any:
        return torch.Event(self._device, blocking=True)


def _streams_of(device: torch.device) -> Streams | None:
    """None if such devices have none, or torch does not show them."""
    module = _stream_module(device)
    if module is not None:
        return _ModuleStreams(module, device)
    is_accelerator = device.type not in ("cpu", "meta", "mps") and current_accelerator() == device.type
    return _AcceleratorStreams(device) if is_accelerator and hasattr(torch.Stream, "__enter__") else None


@functools.cache
def _side_stream(device: torch.device) -> Any:
    """One for all copies to a device: torch reuses memory within a stream only, so new ones would cost memory."""
    module = _stream_module(device)
    return torch.Stream(device) if module is None else module.Stream(device)


_STREAM_NAMES = ("Event", "Stream", "stream", "current_stream", "current_device", "set_device")


def _stream_module(device: torch.device) -> Any:
    """Where torch keeps the streams of such devices, or None. Unlike `torch.accelerator`, every version has them."""
    module = getattr(torch, device.type, None)
    # `torch.cpu` has all these names, but no streams.
    return module if device.type != "cpu" and all(hasattr(module, name) for name in _STREAM_NAMES) else None


class _Witness(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is Any here
    """Sees the tensors that torch's functions make while it is entered: a `to` may work in place, and keep no source.

    Args:
        made: gets every tensor on the device that is returned, and `sources` what such tensors were made from.
    """

    def __init__(self, device: torch.device, made: list[Any], sources: list[Any]) -> None:
        super().__init__()
        self._device = device
        self._made = made
        self._sources = sources

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device == self._device:
            self._made.extend(_allocations(result))
            self._sources.extend(arg for arg in args if isinstance(arg, torch.Tensor) and arg.device != self._device)
        return result


def _map_batch(fn: Callable[[Any], Any], batch: Any, is_leaf: Callable[[Any], bool]) -> Any:
    """Apply `fn` to everything in a batch, to what the fields of dataclasses hold, too; those are copied."""

    def map_one(value: Any) -> Any:
        if is_leaf(value) or not dataclasses.is_dataclass(value) or isinstance(value, type):
            return fn(value)
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        mapped = {name: _map_batch(fn, content, is_leaf) for name, content in fields.items()}
        if all(mapped[name] is content for name, content in fields.items()):
            return value
        copied = copy.copy(value)
        for name, content in mapped.items():
            object.__setattr__(copied, name, content)  # the class may be frozen
        return copied

    return map_leaves(map_one, batch, is_leaf=is_leaf)


_COMPRESSED_ROWS = frozenset({torch.sparse_csr, torch.sparse_bsr})
_COMPRESSED_COLUMNS = frozenset({torch.sparse_csc, torch.sparse_bsc})


def _allocations(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that share all memory of this one, and have a `record_stream`: sparse and nested ones do not."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _COMPRESSED_ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in _COMPRESSED_COLUMNS:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_nested and tensor.layout == torch.strided:
        return list(tensor.unbind()[:1])
    return [tensor]


def _is_movable(value: Any) -> bool:
    # The type is asked, not the value: mappings may show a key named "to" as an attribute.
    return callable(getattr(type(value), "to", None))


def _to(value: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    if not _is_movable(value):
        return value
    cls: type = type(value)
    if non_blocking and _takes_non_blocking(cls):
        return value.to(device, non_blocking=True)
    return value.to(device)


@functools.cache
def _takes_non_blocking(cls: type) -> bool:
    if issubclass(cls, torch.Tensor):
        return True
    try:
        parameters = inspect.signature(cls.to).parameters  # type: ignore[attr-defined]
    except (TypeError, ValueError):  # written in C
        return False
    return "non_blocking" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _is_pinnable(value: Any) -> bool:
    return hasattr(value, "pin_memory")


def _explained(error: Exception, device: Any) -> Exception:
    """The error in torch's own words, and what to do."""
    usable = ["cpu", *filter(None, [current_accelerator()])]
    kinds = (RuntimeError, AssertionError, TypeError, NotImplementedError)
    kind = type(error) if type(error) in kinds else RuntimeError
    return kind(f"device must be one that torch can use here ({', '.join(usable)}), got {str(device)!r}: {error}")
