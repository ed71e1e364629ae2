"""Python scripts in processes of their own, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

_PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from headrace import DataLoader, Dataset, IterableDataset, get_worker_info
from headrace.testing import DyingDataset, FlakyDataset, SlowDataset
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background inherit that it is ignored


"""


@dataclass(frozen=True)
class Ended:
    """How a script ended, and after how many seconds."""

    code: int
    stdout: str
    stderr: str
    seconds: float


class Script:
    """A running script, the leader of a process group that its workers belong to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._start = time.monotonic()
        self.group = process.pid

    def read_line(self) -> str:
        return self._process.stdout.readline().strip()

    def wait(self, limit: float = 30) -> Ended:
        """Wait until the script and all processes of its group are gone."""
        stdout, stderr = self._process.communicate(timeout=limit)
        seconds = time.monotonic() - self._start
        assert not wait_until_gone(self.group), f"left behind by the script: {members(self.group)}\n{stderr}"
        return Ended(self._process.returncode, stdout, stderr, seconds)

    def kill(self) -> None:
        """Kill the script, and nothing else."""
        self._process.kill()
        self._process.wait()

    def interrupt(self) -> None:
        """What Ctrl-C does in a terminal: the whole group gets SIGINT. The clock starts over."""
        self._start = time.monotonic()
        os.killpg(self.group, signal.SIGINT)


@contextmanager
def script(folder: Path, source: str, *, prefix: Sequence[str] = (), bare: bool = False) -> Iterator[Script]:
    """Run a script; at the end, whatever is left of it is killed.

    Args:
        prefix: a command that runs the interpreter.
        bare: without the usual imports.
    """
    path = folder / "script.py"
    path.write_text(("" if bare else _PRELUDE) + textwrap.dedent(source))
    process = subprocess.Popen(
        [*prefix, sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    with process:
        try:
            yield Script(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run_script(
    folder: Path, source: str, *, limit: float = 30, prefix: Sequence[str] = (), bare: bool = False
) -> Ended:
    """Run a script to its end, which must leave nothing behind."""
    with script(folder, source, prefix=prefix, bare=bare) as running:
        return running.wait(limit)


def _status(pid: str) -> tuple[str, int, int] | None:
    """State, parent and group of a process."""
    try:
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[2])


def _alive() -> Iterator[tuple[int, int, int]]:
    """The number, parent and group of all processes that have not ended."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        status = _status(pid)
        if status is not None and status[0] not in "ZX":
            yield int(pid), status[1], status[2]


def members(group: int) -> list[int]:
    """The processes of a group."""
    return [pid for pid, _, its_group in _alive() if its_group == group]


def children(parent: int) -> list[int]:
    """The processes that a process has started. Unlike `multiprocessing.active_children`, this reaps none.

    The helpers of `multiprocessing`, which it keeps for as long as a process lives, are not among them.
    """
    helpers = {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid}
    return [pid for pid, its_parent, _ in _alive() if its_parent == parent and pid not in helpers]


def wait_until_gone(group: int, seconds: float = 5) -> list[int]:
    """The processes of a group that are still there after so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := members(group)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
