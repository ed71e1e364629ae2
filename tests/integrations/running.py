"""Starts a script on one or several processes, once, and collects what each rank saw in each of its cases."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
_TIMEOUT_S = 400


class Seen:
    """What each rank saw, case by case; a case that failed fails the test that asks for it."""

    def __init__(self, ranks: list[dict[str, Any]], output: str) -> None:
        self._ranks, self._output = ranks, output

    def __getitem__(self, case: str) -> list[Any]:
        found = []
        for rank, cases in enumerate(self._ranks):
            assert case in cases, f"rank {rank} did not come to {case!r}:\n{self._output[-6000:]}"
            result = cases[case]
            assert not (isinstance(result, dict) and "error" in result), f"rank {rank}: {result['error']}"
            found.append(result)
        return found


@functools.cache
def seen(script: str, processes: int = 1, *arguments: str) -> Seen:
    """What the ranks saw; they are started once, as torchrun does it, however many tests ask."""
    with tempfile.TemporaryDirectory() as folder:
        return run(script, *arguments, processes=processes, folder=Path(folder))


def run(script: str, *arguments: str, processes: int = 1, folder: Path, ranks_known: bool = True) -> Seen:
    """What the ranks saw in a folder.

    Args:
        ranks_known: whether the environment says which rank a process is, as torchrun's does; Lightning's does not.
    """
    port = _free_port()
    running = []
    for rank in range(processes):
        with (folder / f"output-{rank}.txt").open("w") as output:  # a pipe that is not read would stop the rank
            command = [sys.executable, "-W", "ignore", str(SCRIPTS / script), *arguments]
            told = environment(rank, processes, port, ranks_known)
            running.append(
                subprocess.Popen(
                    command, env=told, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
    try:
        for process in running:
            process.wait(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pass  # the cases that are missing fail
    finally:
        for process in running:
            kill_all(process)
    outputs = [(folder / f"output-{rank}.txt").read_text(errors="replace") for rank in range(processes)]
    files = [folder / f"seen-{rank}.json" for rank in range(processes)]
    return Seen([json.loads(file.read_text()) if file.exists() else {} for file in files], "\n".join(outputs))


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """End a process, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment(rank: int, processes: int, port: int, ranks_known: bool) -> dict[str, str]:
    told = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        told.pop(name, None)
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RECORD": f"seen-{rank}.json"}
    if processes > 1:
        told |= {"WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank), "NODE_RANK": "0"}
        told |= {"LOCAL_WORLD_SIZE": str(processes)} | ({"RANK": str(rank)} if ranks_known else {})
    return told


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
