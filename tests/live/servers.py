"""Real servers, started by the tests, that can be killed, stopped and started again on their port."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
REDIS, NATS = shutil.which("redis-server"), shutil.which("nats-server")
needs_redis = pytest.mark.skipif(REDIS is None, reason="needs redis-server, as in Debian's package of that name")
needs_nats = pytest.mark.skipif(NATS is None, reason="needs nats-server, as in Debian's package of that name")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for a condition; generously, since the machine may be busy."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)


class Server:
    """A process that listens on a port."""

    def __init__(self, command: Sequence[str], port: int, *, says_so: bool = False) -> None:
        self._command = command
        self._says_so = says_so  # when it listens; one that deals rows out must not be asked
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        output = subprocess.PIPE if self._says_so else subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=output, stderr=subprocess.DEVNULL)
        if self._process.stdout is not None:
            with self._process.stdout as lines:
                assert lines.readline() == b"ready\n"
        else:
            wait_until(self._listens)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It does not answer any more, but its connections stay."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


def feed(*arguments: object, port: int | None = None) -> Server:
    port = port or free_port()
    command = [sys.executable, "-m", "tests.live.feed_server", str(port), *map(str, arguments)]
    return Server(command, port, says_so=True)


def redis_server(folder: Path) -> Server:
    """One that has written down what it has confirmed, so that nothing is lost if it is killed."""
    port = free_port()
    options = {"port": port, "dir": folder, "save": "", "appendonly": "yes", "appendfsync": "always"}
    return Server([str(REDIS), *(str(each) for name, value in options.items() for each in (f"--{name}", value))], port)


def nats_server(folder: Path) -> Server:
    port = free_port()
    return Server([str(NATS), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)], port)


def numbers_of(batches: Iterable[Any], most: int) -> list[int]:
    """The field `n` of all rows, until there are so many."""
    found: list[int] = []
    for batch in batches:
        found += [int(n) for n in batch["n"]]
        if len(found) >= most:
            break
    return found
