"""A server that sends numbered rows for ever, over TCP or HTTP; a process of its own, so that tests can kill it.

    python -m tests.live.feed_server PORT --kind tcp --format jsonl --rate 100 --first 0

Each row is `{"n": number, "sent": time.monotonic()}`. All connections share one counter: each row is sent once.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator


class Rows:
    """Numbers rows, at a rate, up to a last one."""

    def __init__(self, first: int, last: int, rate: float) -> None:
        self._lock = threading.Lock()
        self._next, self._last, self._rate = first, last, rate
        self._begun: float | None = None
        self._n = 0

    def take(self) -> Iterator[list[bytes]]:
        """Rows as they become due, several at a time where the rate is high."""
        while True:
            with self._lock:
                if self._next >= self._last:
                    return
                now = time.monotonic()
                self._begun = now if self._begun is None else self._begun
                due = int((now - self._begun) * self._rate) + 1 - self._n if self._rate else 100
                rows = [
                    json.dumps({"n": self._next + i, "sent": now}).encode()
                    for i in range(max(0, min(due, self._last - self._next, 1000)))
                ]
                self._next += len(rows)
                self._n += len(rows)
            yield rows
            if self._rate:
                time.sleep(min(1 / self._rate, 0.005))


def serve(connection: socket.socket, rows: Rows, kind: str, form: str) -> None:
    with connection:
        if kind != "tcp":
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            coding = "Transfer-Encoding: chunked\r\n" if kind == "http" else ""
            connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{coding}\r\n".encode())
            if request.startswith(b"HEAD"):
                return
        try:
            for some in rows.take():
                data = b"".join(struct.pack(">I", len(row)) + row if form == "records" else row + b"\n" for row in some)
                if not data:
                    continue
                connection.sendall(b"%x\r\n%s\r\n" % (len(data), data) if kind == "http" else data)
            if kind == "http":
                connection.sendall(b"0\r\n\r\n")
        except OSError:
            pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--kind", default="tcp", choices=["tcp", "http", "http-plain"])
    parser.add_argument("--format", default="jsonl")
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=2**40)
    arguments = parser.parse_args()
    rows = Rows(arguments.first, arguments.last, arguments.rate)
    server = socket.create_server(("127.0.0.1", arguments.port))
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(connection, rows, arguments.kind, arguments.format), daemon=True).start()


if __name__ == "__main__":
    main()
