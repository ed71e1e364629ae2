"""What loading needs of the system: cores, memory, shared memory, descriptors, processes, a clock."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.cli.finding import Finding, Level
from headrace.inspecting.inspection import show_size
from headrace.loader import DataLoader
from headrace.transport.segment import create_file
from headrace.tuning.machine import Machine

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
