"""Sockets and HTTP responses that never end: lines, JSON lines and length-prefixed records, as they arrive."""

from __future__ import annotations

import base64
import copy
import http.client
import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias
from urllib.error import HTTPError
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

from headrace.base.errors import RecordError
from headrace.sources.chunks import ObjectChunk, RecordChunk
from headrace.sources.encodings import check_errors, find_encoding
from headrace.sources.live import Arrivals, Connector
from headrace.sources.source import BadRecord, Chunk, OnBad, skip_bad

Format: TypeAlias = Literal["lines", "jsonl", "records"]
FORMATS = ("lines", "jsonl", "records")

_PIECE_BYTES = 1 << 16
_CONNECT_S = 10.0
_MAX_RECORD_BYTES = 64 << 20
_RAW_BYTES = 4096  # of a bad record, to show
_MOST_REDIRECTS = 5
# After how long without any sign of life the system probes the other end, how often, and how many times.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class RecordSplitter:
    """Cuts a stream of bytes into records.

    Guarantees: no more is held than one record that is not complete.

    Args:
        format: "lines" end with a newline; "records" begin with their length, four bytes, the most significant first.
    """

    def __init__(self, format: Format, max_record_bytes: int = _MAX_RECORD_BYTES) -> None:  # noqa: A002
        self._format = format
        self._most = max_record_bytes
        self._rest = bytearray()

    def add(self, piece: bytes) -> list[bytes]:
        """The records that are complete now.

        Raises:
            RecordError: a record is too long.
        """
        self._rest += piece
        records = self._cut_records() if self._format == "records" else self._cut_lines(piece)
        if len(self._rest) > self._most:
            raise RecordError(f"A record must have at most {self._most} bytes, and this one has more.")
        return records

    def end(self) -> list[bytes]:
        """What is left at the end: a last line without its newline."""
        rest = bytes(self._rest)
        self._rest.clear()
        if self._format == "records":
            if rest:
                raise RecordError(f"The last record is cut short, after {len(rest)} bytes.")
            return []
        return self._kept([rest]) if rest else []

    def _cut_lines(self, piece: bytes) -> list[bytes]:
        if b"\n" not in piece:
            return []
        lines = bytes(self._rest).split(b"\n")
        self._rest = bytearray(lines.pop())
        return self._kept(lines)

    def _kept(self, lines: list[bytes]) -> list[bytes]:
        lines = [line[:-1] if line.endswith(b"\r") else line for line in lines]
        return [line for line in lines if line.strip()] if self._format == "jsonl" else lines

    def _cut_records(self) -> list[bytes]:
        records, start, rest = [], 0, self._rest
        while len(rest) - start >= 4:
            length = int.from_bytes(rest[start : start + 4], "big")
            if length > self._most:
                raise RecordError(f"A record must have at most {self._most} bytes, and this one has {length}.")
            if len(rest) - start - 4 < length:
                break
            records.append(bytes(rest[start + 4 : start + 4 + length]))
            start += 4 + length
        del rest[:start]
        return records


class _SocketRows:
    """The records of one open connection. `close` ends a wait for them, from any thread."""

    def __init__(self, sock: socket.socket, pieces: Iterable[bytes], splitter: RecordSplitter) -> None:
        self._socket = sock
        self._pieces = pieces
        self._splitter = splitter

    def __iter__(self) -> Iterator[Arrivals]:
        for piece in self._pieces:
            yield Arrivals(self._splitter.add(piece))
        yield Arrivals(self._splitter.end())

    def close(self) -> None:
        with suppress(OSError):  # it was closed by the other end
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class SocketConnector(Connector):
    """Reads `tcp://host:port`, or the response to a GET of `http://…`.

    Args:
        connections: "one", which is dealt out to all workers; or "per_worker", for a server that deals rows out to
            its connections.
        idle_timeout_s: connect again if nothing has come for so long; None to leave that to the system, which notices
            a dead peer after half a minute, but not a server that is stuck.
        at_end: what the end of a connection means; None for a loss, unless an HTTP response is complete.

    Raises:
        ValueError: the address, or an option, is none that is known.
    """

    def __init__(
        self,
        url: str,
        *,
        format: Format = "lines",  # noqa: A002
        connections: str = "one",
        headers: Mapping[str, str] | None = None,
        idle_timeout_s: float | None = None,
        at_end: Literal["stop", "reconnect"] | None = None,
        encoding: str = "utf-8",
        errors: str = "strict",
        max_record_bytes: int = _MAX_RECORD_BYTES,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("tcp", "http", "https") or not parts.hostname:
            raise ValueError(f"url must be 'tcp://host:port' or 'http://…', got {url!r}.")
        if parts.scheme == "tcp" and parts.port is None:
            raise ValueError(f"url must name a port, as in 'tcp://host:9000', got {url!r}.")
        for name, value, known in (("format", format, FORMATS), ("connections", connections, ("one", "per_worker"))):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}.")
        if at_end not in (None, "stop", "reconnect"):
            raise ValueError(f"at_end must be 'stop', 'reconnect' or None, got {at_end!r}.")
        find_encoding(encoding)
        check_errors(errors)
        self._parts = parts
        self._format: Format = format
        self._is_per_worker = connections == "per_worker"
        self._headers = dict(headers or {})
        self._idle_timeout_s = idle_timeout_s
        self._ends_anyhow = at_end == "stop"
        self._encoding, self._errors = encoding, errors
        self._max_record_bytes = max_record_bytes
        self.at_end = at_end or ("reconnect" if parts.scheme == "tcp" else "stop")
        self.name = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def of_rank(self, rank: int, world: int, workers: int) -> Connector:
        if not self._is_per_worker:
            return super().of_rank(rank, world, workers)
        connector = copy.copy(self)
        connector.n_connections = workers
        return connector

    def connect(self, positions: Mapping[str, Any]) -> Iterable[Arrivals]:
        sock, pieces = self._open_tcp() if self._parts.scheme == "tcp" else self._open_http()
        return _SocketRows(sock, pieces, RecordSplitter(self._format, self._max_record_bytes))

    def _open_tcp(self) -> tuple[socket.socket, Iterable[bytes]]:
        sock = socket.create_connection((self._parts.hostname or "", self._parts.port or 0), _CONNECT_S)
        self._watch(sock)
        return sock, iter(lambda: sock.recv(_PIECE_BYTES), b"")

    def _watch(self, sock: socket.socket) -> None:
        """Notice when the other end is gone."""
        sock.settimeout(self._idle_timeout_s)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _open_http(self) -> tuple[socket.socket, Iterable[bytes]]:
        parts = self._parts
        for _ in range(_MOST_REDIRECTS):
            sock, response = _get(parts, self._headers)
            location = response.getheader("Location")
            if not (300 <= response.status < 400 and location):
                break
            parts = urlsplit(urljoin(urlunsplit(parts), location))
            response.close()
            sock.close()
        if response.status != http.client.OK:
            error = HTTPError(self.name, response.status, response.reason, response.headers, None)
            response.close()
            sock.close()
            raise error
        self._watch(sock)
        return sock, self._pieces(response)

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        is_delimited = response.chunked or response.length is not None
        with response:
            while piece := response.read1(_PIECE_BYTES):
                yield piece
            if response.length or not (is_delimited or self._ends_anyhow):
                raise ConnectionResetError("the server closed the connection within its response")

    def decode(self, rows: Sequence[Any], where: str, on_bad: OnBad | None) -> Iterator[Chunk]:
        if self._format == "records":
            yield ObjectChunk(list(rows), "record")
            return
        parse = json.loads if self._format == "jsonl" else _same
        values = list(parsed(rows, lambda raw: parse(raw.decode(self._encoding, self._errors)), where, on_bad))
        if self._format == "jsonl" and all(type(value) is dict for value in values):
            yield RecordChunk(values)
        else:
            yield ObjectChunk(values, "value" if self._format == "jsonl" else "text")


def parsed(rows: Iterable[bytes], parse: Callable[[bytes], Any], where: str, on_bad: OnBad | None) -> Iterator[Any]:
    """What is made of each row; those that cannot be parsed are bad records."""
    for number, raw in enumerate(rows):
        try:
            yield parse(raw)
        except (ValueError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            skip_bad(BadRecord(f"{where}, its row {number}", bytes(raw[:_RAW_BYTES]), reason), on_bad)


def _same(text: str) -> str:
    return text


def _get(parts: SplitResult, headers: Mapping[str, str]) -> tuple[socket.socket, http.client.HTTPResponse]:
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_CONNECT_S)
    sent = {"Accept-Encoding": "identity", "User-Agent": "headrace", **headers}
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        sent.setdefault("Authorization", f"Basic {base64.b64encode(secret).decode()}")
    try:
        target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
        connection.request("GET", target, headers=sent)
        sock = connection.sock  # which the response may take over
        return sock, connection.getresponse()
    except BaseException:
        connection.close()
        raise
