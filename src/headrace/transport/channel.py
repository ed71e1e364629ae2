"""Messages over a socket between the loader and one worker. The loader's side never blocks."""

from __future__ import annotations

import os
import struct
import weakref
from collections import deque
from contextlib import suppress
from socket import SHUT_RD, socket
from typing import TypeAlias

_LENGTH = struct.Struct("<Q")
_CHUNK = 2**17
_MOST_PARTS = 64  # that the system takes at once, and more

Buffer: TypeAlias = bytes | bytearray | memoryview


class WorkerChannel:
    """The worker's side: waits for messages, and waits until its own are sent.

    Raises (everywhere):
        EOFError, OSError: the loader is gone.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()

    def receive(self) -> memoryview:
        if not self._buffer:
            received = os.read(self._fd, _CHUNK)
            if not received:
                raise EOFError
            if len(received) >= _LENGTH.size and _LENGTH.unpack_from(received)[0] == len(received) - _LENGTH.size:
                return memoryview(received)[_LENGTH.size :]  # just one message, which is what mostly comes
            self._buffer += received
        while True:
            message = _cut(self._buffer)
            if message is not None:
                return message
            received = os.read(self._fd, _CHUNK)
            if not received:
                raise EOFError
            self._buffer += received

    def send(self, *parts: Buffer) -> None:
        """Send the parts as one message."""
        n_bytes = sum([memoryview(part).nbytes for part in parts])
        sent = os.writev(self._fd, [_LENGTH.pack(n_bytes), *parts][:_MOST_PARTS])
        if sent == _LENGTH.size + n_bytes:
            return
        unsent = memoryview(b"".join([_LENGTH.pack(n_bytes), *parts]))[sent:]
        while unsent:
            unsent = unsent[os.write(self._fd, unsent) :]


class LoaderChannel:
    """The loader's side. What the worker is too busy to take waits here, until `flush`.

    A forked child must not keep it open, or the worker would not notice that the loader is gone: see
    `close_inherited_channels`.
    """

    def __init__(self, sock: socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._buffer = bytearray()
        self._unsent: deque[memoryview] = deque()
        _open_channels.add(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Send, or keep for later what the worker does not take now."""
        framed = _LENGTH.pack(len(message)) + message
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.send(framed)
            except BlockingIOError:
                pass
            except OSError:
                return  # the worker is gone, which its end tells
        if sent < len(framed):
            self._unsent.append(memoryview(framed)[sent:])

    def flush(self) -> None:
        """Send what was kept, as far as the worker takes it."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # the worker is gone, which its end tells
                return
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def send_last(self, message: bytes) -> None:
        """Send, and take nothing more: a worker that waits to be read does not wait any longer."""
        self.send(message)
        if self._unsent:
            self.close()
        else:
            with suppress(OSError):
                self._socket.shutdown(SHUT_RD)

    def messages(self, *, to_the_end: bool = False) -> list[memoryview]:
        """The whole messages among what one look finds, or among all that there is."""
        found: list[memoryview] = []
        while True:
            try:
                received = self._socket.recv(_CHUNK)
            except OSError:  # nothing has arrived, or the worker is gone
                received = b""
            if not received:
                return found
            self._cut_off(received, found)
            if not to_the_end:
                return found

    def _cut_off(self, received: bytes, found: list[memoryview]) -> None:
        """Find the whole messages, without a copy if none has begun before; the rest is kept."""
        if self._buffer:
            self._buffer += received
            while (message := _cut(self._buffer)) is not None:
                found.append(message)
            return
        view, start, n_bytes = memoryview(received), 0, len(received)
        while n_bytes - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(received, start)[0]
            if end > n_bytes:
                break
            found.append(view[start + _LENGTH.size : end])
            start = end
        if start < n_bytes:
            self._buffer += view[start:]

    def close(self) -> None:
        self._socket.close()


def _cut(buffer: bytearray) -> memoryview | None:
    """The first whole message, taken off the buffer."""
    if len(buffer) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
    if len(buffer) < end:
        return None
    message = bytes(memoryview(buffer)[_LENGTH.size : end])
    del buffer[:end]
    return memoryview(message)


_open_channels: weakref.WeakSet[LoaderChannel] = weakref.WeakSet()


def close_inherited_channels() -> None:
    """In a forked child: let go of all channels that belong to the parent."""
    for channel in list(_open_channels):
        channel.close()
    _open_channels.clear()


os.register_at_fork(after_in_child=close_inherited_channels)
