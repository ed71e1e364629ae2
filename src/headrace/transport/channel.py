"""Messages between the loader and one worker, over a socket. The loader's side never blocks.

Longer ones from the worker lie in a ring in shared memory, as long as there is room, and the socket says where.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections import deque
from contextlib import suppress
from itertools import islice
from socket import SHUT_RD, socket

from headrace.transport.shared_memory import Buffer, RingReader, RingWriter

_LENGTH = struct.Struct("<Q")
_IN_RING = 1 << 63  # is added to the length of a message that lies there
_IN_RING_AT = struct.Struct("<QQ")
_WORTH_RING = 512  # bytes
_CHUNK = 2**16
_MOST_PARTS = 64  # that the system takes at once, and more


class WorkerChannel:
    """The worker's side: waits for messages, and waits until its own are sent.

    Raises (everywhere):
        EOFError, OSError: the loader is gone.
    """

    def __init__(self, fd: int, ring: RingWriter | None = None) -> None:
        self._fd = fd
        self._ring = ring
        self._cutter = _Cutter()
        self._received: deque[memoryview] = deque()

    def receive(self) -> memoryview:
        while not self._received:
            received = os.read(self._fd, _CHUNK)
            if not received:
                raise EOFError
            self._received.extend(self._cutter.cut(received))
        return self._received.popleft()

    @property
    def has_received(self) -> bool:
        """Whether `receive` will not wait."""
        return bool(self._received)

    def send(self, *message: Buffer) -> None:
        """Send the parts of one message."""
        n_bytes = sum([len(part) for part in message])
        start = None if self._ring is None or n_bytes < _WORTH_RING else self._ring.put(message, n_bytes)
        parts = [_LENGTH.pack(n_bytes), *message] if start is None else [_IN_RING_AT.pack(n_bytes | _IN_RING, start)]
        sent = os.writev(self._fd, parts[:_MOST_PARTS])
        if start is not None or sent == n_bytes + _LENGTH.size:
            return
        unsent = memoryview(b"".join(parts))[sent:]
        while unsent:
            unsent = unsent[os.write(self._fd, unsent) :]


class LoaderChannel:
    """The loader's side. What the worker is too busy to take waits here, until `flush`.

    A forked child must not keep it open, or the worker would not notice that the loader is gone: see
    `close_inherited_channels`.
    """

    def __init__(self, sock: socket, ring: RingReader | None = None) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._cutter = _Cutter(ring)
        self._unsent: deque[memoryview] = deque()
        for key in [key for key, channel in _open_channels.items() if channel() is None]:
            del _open_channels[key]
        _open_channels[id(self)] = weakref.ref(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Send, or keep for later what the worker does not take now."""
        self.put(message)
        self.flush()

    def put(self, message: bytes) -> None:
        """Keep a message, to be sent with the next `flush`."""
        self._unsent.append(memoryview(_LENGTH.pack(len(message)) + message))

    def flush(self) -> None:
        """Send what was kept, as far as the worker takes it."""
        while self._unsent:
            try:
                sent = self._socket.sendmsg([*islice(self._unsent, _MOST_PARTS)])
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # the worker is gone, which its sentinel reports
                return
            while sent:
                part = self._unsent.popleft()
                if sent < len(part):
                    self._unsent.appendleft(part[sent:])
                sent = max(sent - len(part), 0)

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
            found += self._cutter.cut(received)
            if not to_the_end:
                return found

    def close(self) -> None:
        _open_channels.pop(id(self), None)
        self._socket.close()


class _Cutter:
    """Cuts what comes in pieces of any length into messages; a message that has begun is kept for the next piece.

    Args:
        ring: where the messages are that do not come themselves.
    """

    def __init__(self, ring: RingReader | None = None) -> None:
        self._ring = ring
        self._begun = bytearray()
        self._missing = 0  # bytes, at least, before another message is whole

    def cut(self, received: bytes) -> list[memoryview]:
        """The messages that are whole now."""
        if self._begun:
            self._begun += received
            if len(self._begun) < self._missing:
                return []
            received = bytes(self._begun)
            self._begun.clear()
        found: list[memoryview] = []
        view, start, n_bytes = memoryview(received), 0, len(received)
        while start < n_bytes:
            end = body = start + _LENGTH.size
            length = 0
            if body <= n_bytes:
                (length,) = _LENGTH.unpack_from(received, start)
                end += length if length < _IN_RING else _LENGTH.size
            if end > n_bytes:
                self._begun += view[start:]
                self._missing = end - start
                break
            if length < _IN_RING:
                found.append(view[body:end])
            elif self._ring is not None:
                (place,) = _LENGTH.unpack_from(received, body)
                found.append(memoryview(self._ring.take(place, length - _IN_RING)))
            start = end
        return found


_open_channels: dict[int, weakref.ref[LoaderChannel]] = {}  # no WeakSet: its callbacks may be interrupted


def close_inherited_channels() -> None:
    """In a forked child: let go of all channels that belong to the parent."""
    for channel in [channel() for channel in _open_channels.values()]:
        if channel is not None:
            channel.close()


os.register_at_fork(after_in_child=close_inherited_channels)
