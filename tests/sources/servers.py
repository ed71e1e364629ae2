"""Servers on loopback: a web server with and without ranges, one of S3, and faults on the way."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

FAULTS = ("unavailable", "reset", "short", "silent", "too many requests")
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
_START_SECONDS = 60
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class FaultyServer(HTTPServer):
    """Answers one request after the other, in one thread.

    Attributes:
        faults: what goes wrong with the next answers to GET, one after the other; None lets one through.
        requests: the method, path and range of each request, and the status of its answer.
    """

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.faults: list[str | None] = []
        self.requests: list[tuple[str, str, str | None, int]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of ours."""


class FaultyHandler(BaseHTTPRequestHandler):
    server: FaultyServer

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send an answer, or do the next fault."""
        fault = self.server.faults.pop(0) if self.command == "GET" and self.server.faults else None
        if fault in ("unavailable", "too many requests"):
            status, headers, body = {"unavailable": 503, "too many requests": 429}[fault], {}, b""
        if fault == "short":
            body = body[: len(body) // 2]
        self.server.requests.append((self.command, self.path, self.headers.get("Range"), status))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if fault != "silent":  # without its length, the end of an answer is where the connection ends
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if fault in ("reset", "silent") else body)
        if fault == "reset":
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


class FileHandler(FaultyHandler):
    """Files in memory, by path: their content and etag."""

    files: dict[str, tuple[bytes, str]]
    knows_ranges = True

    def do_GET(self) -> None:
        if self.path not in self.files:
            return self.answer(404, {}, b"")
        content, etag = self.files[self.path]
        wanted = _RANGE.fullmatch(self.headers.get("Range") or "") if self.knows_ranges else None
        if wanted is None:
            return self.answer(200, {"ETag": etag}, content)
        start, stop = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
        if start >= len(content):
            return self.answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
        headers = {"ETag": etag, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        return self.answer(206, headers, content[start:stop])

    do_HEAD = do_GET  # noqa: N815 (the name that http.server calls)


class FileServer(FaultyServer):
    """A web server of files in memory."""

    def __init__(self, knows_ranges: bool) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        self.knows_ranges = knows_ranges
        super().__init__(type("Handler", (FileHandler,), {"files": self.files, "knows_ranges": knows_ranges}))

    def put(self, path: str, content: bytes, etag: str = '"1"') -> str:
        """The URL of a file that is now there."""
        self.files[path] = (content, etag)
        return self.url + path


class ProxyServer(FaultyServer):
    """Passes requests that read on to another server."""

    def __init__(self, port: int) -> None:
        self.direct_url = f"http://127.0.0.1:{port}"

        class Handler(FaultyHandler):
            def do_GET(self) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", port)
                connection.request(self.command, self.path, headers=dict(self.headers))
                response = connection.getresponse()
                body = response.read()
                connection.close()
                dropped = {"transfer-encoding", "connection", "date", "server"}
                if self.command != "HEAD":
                    dropped.add("content-length")
                headers = {name: value for name, value in response.getheaders() if name.lower() not in dropped}
                if self.command == "HEAD":
                    return self.answer_head(response.status, headers)
                return self.answer(response.status, headers, body)

            def answer_head(self, status: int, headers: dict[str, str]) -> None:
                self.server.requests.append((self.command, self.path, None, status))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            do_HEAD = do_GET  # noqa: N815 (the name that http.server calls)

        super().__init__(Handler)


@contextlib.contextmanager
def running(server: FaultyServer) -> Iterator[Any]:
    """Serves in a thread until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module", params=[True, False], ids=["ranges", "no ranges"])
def web_server(request: pytest.FixtureRequest) -> Iterator[FileServer]:
    """A web server that knows ranges, and one that does not."""
    with running(FileServer(knows_ranges=request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def s3_server() -> Iterator[ProxyServer]:
    """A server of S3, behind one that does faults; credentials for it are in the environment."""
    pytest.importorskip("moto")
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
        try:
            _wait_until_open(port, process)
            with running(ProxyServer(port)) as proxy:
                yield proxy
        finally:
            process.terminate()
            process.wait()


def closes_are_done() -> None:
    """Waits for what fsspec's thread was told to close."""
    import fsspec.asyn

    for _ in range(3):  # closing a response closes its connection in the next turn of the loop, and that its socket
        fsspec.asyn.sync(fsspec.asyn.get_loop(), asyncio.sleep, 0)


@pytest.fixture(scope="module")
def fsspec_running() -> None:
    """Starts the threads that fsspec and asyncio keep."""
    pytest.importorskip("aiohttp")
    asyn = pytest.importorskip("fsspec.asyn")
    loop = asyn.get_loop()
    executor = ThreadPoolExecutor(1)
    executor.submit(int).result()
    loop.call_soon_threadsafe(loop.set_default_executor, executor)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the server of S3 did not start (exit code {process.poll()})")
