"""Messages over a socket between the loader and one worker. The loader's side never blocks."""

from __future__ import annotations

import os
import struct
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from socket import SHUT_RD, socket

_LENGTH = struct.Struct("<Q")
_CHUNK = 2**17


class WorkerChannel:
    """The worker's side: waits for messages, and waits until its own are sent.

    Raises (everywhere):
        EOFError, OSError: the loader is gone.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()

    def receive(self) -> memoryview:
        while True:
            message = _cut(self._buffer)
            if message is not None:
                return message
            received = os.read(self._fd, _CHUNK)
            if not received:
                raise EOFError
            self._buffer += received

    def send(self, message: bytes) -> None:
        unsent = memoryview(_LENGTH.pack(len(message)) + message)
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
        self._unsent.append(memoryview(_LENGTH.pack(len(message)) + message))
        self.flush()

    def flush(self) -> None:
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

    def messages(self, *, to_the_end: bool = False) -> Iterator[memoryview]:
        """The whole messages among what one look finds, or among all that there is."""
        while received := self._look():
            if self._buffer:
                self._buffer += received
                while (message := _cut(self._buffer)) is not None:
                    yield message
            else:
                yield from self._cut_off(received)
            if not to_the_end:
                return

    def _look(self) -> bytes:
        try:
            return self._socket.recv(_CHUNK)
        except OSError:  # nothing has arrived, or the worker is gone
            return b""

    def _cut_off(self, received: bytes) -> Iterator[memoryview]:
        """The whole messages, without a copy; the rest goes into the buffer."""
        view, start = memoryview(received), 0
        while len(received) - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(received, start)[0]
            if end > len(received):
                break
            yield view[start + _LENGTH.size : end]
            start = end
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
