"""Runs a script on one or several processes, and collects what each rank printed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
_TIMEOUT_S = 150


def run(script: str, *arguments: Any, processes: int = 1, cwd: Path | None = None) -> list[Any]:
    """What each rank printed after "SEEN", in the order of the ranks; ranks are started here, as torchrun does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(processes)}
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    running = []
    for rank in range(processes):
        own = {} if processes == 1 else {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        running.append(
            subprocess.Popen(
                command, env={**environment, **own}, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    return [_seen(process) for process in running]


def _seen(process: subprocess.Popen[str]) -> Any:
    try:
        output, errors = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    lines = [line.partition("SEEN ")[2] for line in output.splitlines() if "SEEN " in line]
    assert process.returncode == 0, f"{output[-2000:]}\n{errors[-4000:]}"
    return json.loads(lines[-1])


def run_lightning(*arguments: Any, processes: int = 1, cwd: Path | None = None) -> list[Any]:
    """Lightning starts the other ranks by itself, which write to the same place; each writes a file instead."""
    assert cwd is not None
    for old in cwd.glob("seen-*.json"):
        old.unlink()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPTS / "lightning_fit.py"), *map(str, arguments), str(processes)]
    done = subprocess.run(
        command, env=environment, cwd=cwd, text=True, capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((cwd / f"seen-{rank}.json").read_text()) for rank in range(processes)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
