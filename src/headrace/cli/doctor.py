"""`headrace doctor`: looks for what makes loading fail or slow on this machine, and says what to do about it."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from headrace.base.optional import is_installed
from headrace.cli.output import out
from headrace.inspecting import show_size
from headrace.loader import DataLoader
from headrace.transport.shared_memory import create_file
from headrace.tuning.machine import Machine, this_machine


class Level(Enum):
    """How bad it is."""

    FINE = "fine"
    NOTE = "note"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        fix: what to do about it; none is needed where all is fine.
    """

    area: str
    what: str
    level: Level = Level.FINE
    fix: str = ""


_STYLES = {Level.FINE: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.BROKEN: "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look for what makes loading fail, or slow, on this machine: cores, memory, descriptors, workers, libraries.

    Each finding comes with what to do about it. Exit code 1 if something is broken, else 0.

    Example: `headrace doctor --json`
    """
    findings = list(examine())
    if as_json:
        rows = [{**vars(finding), "level": finding.level.value} for finding in findings]
        out.print_json(json.dumps(rows))
    else:
        _print_table(findings)
    if any(finding.level is Level.BROKEN for finding in findings):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Look at everything."""
    machine = this_machine()
    yield from check_python()
    yield from check_cores(machine)
    yield from check_threads(machine, os.environ)
    yield from check_memory(machine)
    yield from check_shared_memory()
    yield from check_descriptors()
    yield from check_workers()
    yield from check_clock()
    yield from check_start_method()
    yield from check_libraries()
    yield from check_cluster(os.environ)


def _print_table(findings: list[Finding]) -> None:
    table = Table("", "", "finding", "what to do", box=None, header_style="bold", pad_edge=False)
    area = ""
    for finding in findings:
        style = _STYLES[finding.level]
        shown_area = "" if finding.area == area else finding.area
        table.add_row(
            f"[bold]{shown_area}[/]", f"[{style}]{finding.level.value}[/]", escape(finding.what), escape(finding.fix)
        )
        area = finding.area
    out.print(table)
    bad = [finding for finding in findings if finding.level in (Level.WARNING, Level.BROKEN)]
    out.print(f"\n{len(findings)} things looked at, {len(bad)} to look after." if bad else "\nAll is well.")


_LITTLE_MEMORY = 2 * 10**9
_LITTLE_SHARED = 256 * 10**6
_FEW_DESCRIPTORS = 4096
_TOO_FEW_DESCRIPTORS = 128
_SLOW_CLOCK_S = 1e-6
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def check_python() -> Iterator[Finding]:
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        text += ", free-threaded"
    if sys.platform in ("linux", "darwin"):
        yield Finding("Python", text)
    else:
        yield Finding("Python", text, Level.BROKEN, "Worker processes need Linux or macOS: use WSL on Windows.")


def check_cores(machine: Machine) -> Iterator[Finding]:
    text = f"{machine.affinity} of {os.cpu_count()} may be used"
    if machine.cpu_limit is None or machine.cpu_limit >= machine.affinity:
        yield Finding("Cores", text)
        return
    yield Finding(
        "Cores",
        f"{text}, but the container gets the time of {machine.cpu_limit:g} only",
        Level.WARNING,
        f"Do not count on os.cpu_count(): use at most {machine.cores} workers, and OMP_NUM_THREADS={machine.cores}.",
    )


def check_threads(machine: Machine, environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in _THREAD_VARIABLES:
        value = environment.get(name, "")
        text, fix = f"{name} is {value or 'not set'}", f"export {name}={machine.cores}"
        if value.isdecimal() and int(value) > machine.cores:
            yield Finding("Threads", f"{text}, on {machine.cores} cores", Level.WARNING, fix)
        elif not value and machine.cores < machine.affinity:
            yield Finding("Threads", f"{text}, so {machine.affinity} threads share the time", Level.WARNING, fix)
        else:
            yield Finding("Threads", text)


def check_memory(machine: Machine) -> Iterator[Finding]:
    limit = "" if machine.memory_limit is None else f", the container's limit is {show_size(machine.memory_limit)}"
    text = f"{show_size(machine.memory_free)} free{limit}"
    if machine.memory_free is not None and machine.memory_free < _LITTLE_MEMORY:
        yield Finding("Memory", text, Level.WARNING, "Load fewer batches ahead: fewer workers, prefetch_factor=1.")
    else:
        yield Finding("Memory", text)


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    try:
        os.close(create_file())
        yield Finding("Shared memory", "anonymous shared memory can be made: what headrace's workers send batches by")
    except OSError as error:
        yield Finding("Shared memory", f"cannot be made: {error}", Level.BROKEN, "Use num_workers=0, or threads.")
    if not folder.is_dir():
        yield Finding("Shared memory", f"there is no {folder}", Level.NOTE, "torch's own workers may need it.")
        return
    space = shutil.disk_usage(folder)
    text = f"{folder} holds {show_size(space.total)}, {show_size(space.free)} free"
    if space.free < _LITTLE_SHARED:
        fix = "torch's own workers die with a bus error when it is full: docker run --shm-size=8g. headrace's do not."
        yield Finding("Shared memory", text, Level.WARNING, fix)
    else:
        yield Finding("Shared memory", text)


def check_descriptors() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} may be open, at most {hard}"
    fix = f"ulimit -n {min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536}"
    if soft < _TOO_FEW_DESCRIPTORS:
        yield Finding("Descriptors", text, Level.BROKEN, fix)
    elif soft < _FEW_DESCRIPTORS and sys.platform == "linux":
        why = "torch's own workers take one for each tensor that you keep (file_descriptor sharing); headrace's none."
        yield Finding("Descriptors", text, Level.NOTE, f"{fix}. {why}")
    else:
        yield Finding("Descriptors", text)


def check_workers() -> Iterator[Finding]:
    """Let two worker processes load something."""
    started = time.perf_counter()
    try:
        with DataLoader(range(8), batch_size=2, num_workers=2, output="numpy", seed=0, timeout=30) as loader:
            loaded = [int(n) for batch in loader for n in batch]
    except Exception as error:  # noqa: BLE001 (whatever it is, it is what the doctor was called for)
        fix = "Use num_workers=0, or engine='threads'; and look at the limits above."
        yield Finding("Workers", f"do not work: {type(error).__name__}: {error}", Level.BROKEN, fix)
        return
    if loaded == list(range(8)):
        yield Finding("Workers", f"two processes started, loaded and ended in {time.perf_counter() - started:.2f} s")
    else:
        yield Finding("Workers", f"loaded {loaded} instead of 0 to 7", Level.BROKEN, "This is a bug: please report it.")


def check_clock() -> Iterator[Finding]:
    n = 10_000
    started = time.perf_counter()
    for _ in range(n):
        time.perf_counter()
    cost_s = (time.perf_counter() - started) / n
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    name = f" ({source.read_text(encoding='ascii').strip()})" if source.is_file() else ""
    text = f"is read in {1e9 * cost_s:.0f} ns{name}"
    if cost_s > _SLOW_CLOCK_S:
        fix = "Times of short stages are too long. Choose another clock source: tsc, where the machine has it."
        yield Finding("Clock", text, Level.NOTE, fix)
    else:
        yield Finding("Clock", text)


_LIBRARIES = {
    "numpy": (1, 26),
    "torch": (2, 4),
    "jax": (0, 4, 30),
    "pyarrow": (15,),
    "fsspec": (2024, 2),
    "pillow": (10, 3),
    "ray": (2, 49),
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


_SMALL_STORE = 2**29


def check_cluster(environment: Mapping[str, str]) -> Iterator[Finding]:
    """The Ray cluster that RAY_ADDRESS names, for engine="ray"."""
    if not environment.get("RAY_ADDRESS") or not is_installed("ray"):
        return
    from headrace.engines.ray_cluster import Request, alive_nodes, connect, count_places, room_for_batches

    try:
        connect(None)
        nodes = alive_nodes()
        free = count_places(Request(), now=True)
    except Exception as error:  # noqa: BLE001 (whatever Ray raises)
        fix = "See that the cluster runs, and that its Ray and Python are of the same versions as here."
        yield Finding("Cluster", f"Ray at {environment['RAY_ADDRESS']} cannot be reached: {error}", Level.BROKEN, fix)
        return
    cpus = sum(node["Resources"].get("CPU", 0) for node in nodes)
    text = f"Ray has {len(nodes)} nodes with {cpus:g} CPU, and room for {free} workers of 1 CPU now"
    if free:
        yield Finding("Cluster", text)
    else:
        yield Finding("Cluster", text, Level.WARNING, "End what takes the CPUs, or pass RayEngine(num_cpus=...).")
    store = min(node["Resources"].get("object_store_memory", 0) for node in nodes)
    text = f"{show_size(room_for_batches())} of batches may be on their way in the smallest object store"
    text += f" ({show_size(int(store))})"
    if store < _SMALL_STORE:
        yield Finding("Cluster", text, Level.NOTE, "Start nodes with a larger --object-store-memory for large batches.")
    else:
        yield Finding("Cluster", text)


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
