"""Batches on a device: copied ahead of time on a stream of their own, and safe to use when they arrive."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.base.containers import map_leaves
from headrace.base.optional import import_extra
from headrace.frameworks.torch_tensors import current_accelerator

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "Moving batches to a device")


class DeviceCopier(Protocol):
    """Moves batches to a device in two steps, which may run in two threads.

    Everything with a method `to` is moved: tensors, packed sequences, batches of other libraries; other things stay.
    """

    @property
    def worth_a_thread(self) -> bool:
        """Whether the first step takes time that the consumer could use."""

    def copy(self, batch: Any) -> Any:
        """Send a batch on its way."""

    def arrive(self, on_its_way: Any) -> Any:
        """The batch, ready for whatever the calling thread does next."""


def device_copier(device: Any) -> DeviceCopier:
    """What moves batches to `device`; called by the consumer, whose current device completes a bare "cuda".

    Raises:
        RuntimeError, AssertionError, TypeError: torch does not know the device, or cannot use it here.
    """
    device = parse_device(device)
    try:
        device = torch.empty(0, device=device).device
    except Exception as error:
        raise _explained(error, device) from error
    module = _stream_module(device)
    return PlainCopier(device) if module is None else StreamCopier(device, _ModuleStreams(module, device))


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
    module = _stream_module(device)
    index = module.current_device() if module is not None and device.index is None else device.index

    def begin() -> None:
        torch.set_num_threads(1)
        if module is not None:
            module.set_device(index)

    return begin


class PlainCopier:
    """Copies at once; for devices without streams: the CPU, `meta`, Apple's GPUs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def worth_a_thread(self) -> bool:
        return self._device.type not in ("cpu", "meta")

    def copy(self, batch: Any) -> Any:
        return map_leaves(lambda value: _to(value, self._device), batch, is_leaf=_is_movable)

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


@dataclass(frozen=True, slots=True)
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
    event: Event
    host: Any


class StreamCopier:
    """Copies from page-locked memory on a stream of its own, so that the device computes meanwhile.

    Guarantees: what the consumer queues after `arrive` sees the whole batch; its memory on the device is not reused
    before the consumer's stream is done with it; the memory it was copied from is not let go of before the copy is
    complete. That of the last batch is kept until the next one is copied, or the copier goes.

    `copy` is for one thread, `arrive` for another or the same.
    """

    worth_a_thread = True

    def __init__(self, device: torch.device, streams: Streams) -> None:
        self._device = device
        self._streams = streams
        self._sent: deque[_Sent] = deque()
        weakref.finalize(self, _complete, self._sent).atexit = False

    def copy(self, batch: Any) -> OnItsWay:
        host = map_leaves(_pinned, batch, is_leaf=_is_pinnable)
        made: list[Any] = []
        try:
            with self._streams.aside():
                moved = map_leaves(lambda value: self._move(value, made), host, is_leaf=_is_movable)
        finally:  # even if a part of it failed, the rest is on its way
            event = self._streams.mark()
            self._sent.append(_Sent(event, host))
        if len(self._sent) > 1:  # the one before has been copied while this one was fetched and pinned
            self._sent[0].event.synchronize()
            self._sent.popleft()
        return OnItsWay(moved, tuple(made), event)

    def _move(self, value: Any, made: list[Any]) -> Any:
        if isinstance(value, torch.Tensor):
            moved = _to(value, self._device, non_blocking=True)
            if moved is not value:
                made.extend(_allocations(moved))
            return moved
        if not _is_movable(value):
            return value
        with _Witness(self._device, made):
            moved = _to(value, self._device, non_blocking=True)
        if hasattr(type(moved), "record_stream"):  # then it may have memory that no tensor of torch's shows
            made.append(moved)
        return moved

    def arrive(self, on_its_way: OnItsWay) -> Any:
        stream = self._streams.current()
        stream.wait_event(on_its_way.event)
        for made in on_its_way.made:
            made.record_stream(stream)
        return on_its_way.batch


def _complete(sent: deque[_Sent]) -> None:
    for each in sent:
        each.event.synchronize()


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
        event: Event = self._side.record_event()
        return event

    def current(self) -> Stream:
        stream: Stream = self._module.current_stream(self._device)
        return stream


@functools.cache
def _side_stream(device: torch.device) -> Any:
    """One for all copies to a device: torch reuses memory within a stream only, so new ones would cost memory."""
    return _stream_module(device).Stream(device)


_STREAM_NAMES = ("Stream", "stream", "current_stream", "current_device", "set_device")


def _stream_module(device: torch.device) -> Any:
    """Where torch keeps the streams of such devices, or None. Unlike `torch.accelerator`, every version has them."""
    module = getattr(torch, device.type, None)
    # `torch.cpu` has all these names, but no streams.
    return module if device.type != "cpu" and all(hasattr(module, name) for name in _STREAM_NAMES) else None


class _Witness(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is Any here
    """Adds to `made` every tensor on the device that torch's functions return while it is entered."""

    def __init__(self, device: torch.device, made: list[Any]) -> None:
        super().__init__()
        self._device = device
        self._made = made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device == self._device:
            self._made.extend(_allocations(result))
        return result


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


def _pinned(value: Any) -> Any:
    """The value in page-locked memory if possible: from elsewhere the copy is slower, but not wrong."""
    if not _is_pinnable(value) or (isinstance(value, torch.Tensor) and value.device.type != "cpu"):
        return value
    try:
        return value.pin_memory()
    except RuntimeError:  # it is sparse, or holds tensors that are on a device; or there is no such memory left
        return value


def _explained(error: Exception, device: Any) -> Exception:
    """The error in torch's own words, and what to do."""
    usable = ["cpu", *filter(None, [current_accelerator()])]
    kinds = (RuntimeError, AssertionError, TypeError, NotImplementedError)
    kind = type(error) if type(error) in kinds else RuntimeError
    return kind(f"device must be one that torch can use here ({', '.join(usable)}), got {str(device)!r}: {error}")
