"""Which libraries are there, and what is known of them and worker processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace.cli.finding import Finding, Level

_LIBRARIES = {
    "numpy": (1, 26),
    "torch": (2, 4),
    "jax": (0, 4, 30),
    "pyarrow": (15,),
    "fsspec": (2024, 2),
    "pillow": (10, 3),
    "ray": (2, 9),
    "matplotlib": (3, 8),
}
"""What headrace can make use of, and from which version on."""

_FORK_HAZARDS = {
    "jax": "its threads do not survive a fork; where JAX is in use, headrace's workers come from a fork server",
    "tensorflow": "its threads do not survive a fork: multiprocessing_context='forkserver'",
    "polars": "its thread pool does not survive a fork: multiprocessing_context='forkserver'",
    "grpcio": "channels do not survive a fork: open them in the worker, at the first sample",
    "h5py": "open files in the worker, at the first sample: forked workers would share the place in them",
    "lmdb": "open the environment in the worker, at the first sample",
    "opencv-python": "call cv2.setNumThreads(0) in worker_init_fn: each worker would start a thread per core",
    "opencv-python-headless": "call cv2.setNumThreads(0) in worker_init_fn: each worker would start a thread per core",
    "s3fs": "file systems are opened anew in each worker by headrace's sources; do so in your own datasets",
}


def version_of(library: str) -> str | None:
    """The version that is installed, without importing it."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def check_libraries() -> Iterator[Finding]:
    for name, least in _LIBRARIES.items():
        found = version_of(name)
        if found is None:
            yield Finding("Libraries", f"{name} is not installed")
        elif _numbers(found) < least:
            wanted = ".".join(map(str, least))
            fix = f"pip install '{name}>={wanted}'"
            yield Finding("Libraries", f"{name} {found} is older than {wanted}", Level.WARNING, fix)
        else:
            yield Finding("Libraries", f"{name} {found}")


def _numbers(text: str) -> tuple[int, ...]:
    """The release of a version: of "2.4.1+cpu" these are 2, 4 and 1."""
    parts = []
    for part in text.split("+")[0].split("."):
        if not part.isdecimal():
            break
        parts.append(int(part))
    return tuple(parts)


def check_start_method() -> Iterator[Finding]:
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    yield Finding("Start method", f"worker processes start by {method}")
    if method != "fork":
        return
    for name, hazard in _FORK_HAZARDS.items():
        if version_of(name) is not None:
            yield Finding("Fork", f"{name} is installed", Level.NOTE, f"{hazard}.")
    others = _foreign_threads()
    if others:
        fix = "What they hold at a fork is held for ever in the workers. Try multiprocessing_context='forkserver'."
        yield Finding("Fork", f"{others} threads of libraries run already in this process", Level.NOTE, fix)


def _foreign_threads() -> int:
    """Threads that Python knows nothing of: started by libraries when they were imported."""
    tasks = Path("/proc/self/task")
    return max(0, len(os.listdir(tasks)) - threading.active_count()) if tasks.is_dir() else 0
