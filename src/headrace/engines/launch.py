"""Starts worker processes: whatever the start method, whatever the dataset is made of.

Under `spawn` and `forkserver` the job travels by cloudpickle, so lambdas, bound methods, local classes and things that
are defined in the script itself arrive by value. The script need not be imported again in the worker, so it needs no
`if __name__ == "__main__"` guard, and what it imports (torch, for instance) is imported in a worker only if the dataset
uses it. Only where that fails is the script imported, as `multiprocessing` does by default.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from copyreg import dispatch_table
from importlib import _bootstrap, import_module
from multiprocessing import reduction, resource_tracker, spawn
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from headrace.base.errors import WorkerStartError
from headrace.base.interrupts import block_interrupts
from headrace.base.optional import loaded
from headrace.engines.unpicklable import name_culprit

NO_GUARD = 72
"""The exit code of a worker that had to import the script, which would start workers of its own."""

_SERVER_MODULE = "headrace.engines.fork_server"
_IMPORTER = "headrace worker that imports the script"  # the name of such a process

GUARD_HINT = (
    "Put the part of the script that runs the loader under\n"
    '    if __name__ == "__main__":\n'
    "or else every worker that imports the script would start workers of its own."
)


def default_context(output: str) -> BaseContext | None:
    """How workers start if the loader is not told; None is Python's own way.

    JAX's threads do not survive a fork, so where JAX is in use, workers come from a fork server instead. Not if the
    batches are torch tensors: then workers start as torch's do.
    """
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    uses_jax = output == "jax" or (output == "numpy" and _jax_is_running())
    return multiprocessing.get_context("forkserver") if uses_jax and method == "fork" else None


def _jax_is_running() -> bool:
    """Whether JAX has started its threads: it does so at the first array, not when it is imported."""
    is_running = getattr(loaded("jax._src.xla_bridge"), "backends_are_initialized", None)
    return is_running is not None and bool(is_running())


_STARTERS = {
    "fork": ("multiprocessing.popen_fork",),
    "forkserver": ("cloudpickle", "multiprocessing.forkserver", "multiprocessing.popen_forkserver"),
    "spawn": ("cloudpickle", "multiprocessing.popen_spawn_posix"),
}


def import_starter(context: BaseContext | None) -> None:
    """Import what `start_process` needs."""
    method = (context or multiprocessing.get_context()).get_start_method()
    for module in _STARTERS[method]:
        import_module(module)


class Descriptor:
    """A file descriptor that is valid in the worker too, whatever the start method."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> Any:
        return _receive_descriptor, (reduction.DupFd(self.fd),)


def _receive_descriptor(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


class Parcel:
    """An object that is sent to a worker by value, with cloudpickle."""

    def __init__(self, content: Any, *, by_reference: bool = False) -> None:
        self.content = content
        self._by_reference = by_reference

    def __reduce__(self) -> Any:
        if self._by_reference:
            return Parcel, (self.content,)
        return _open_parcel, (_cloudpickle(self.content),)


def _open_parcel(packed: bytes) -> Parcel:
    return Parcel(pickle.loads(packed))


def _cloudpickle(content: Any) -> bytes:
    import cloudpickle

    # What multiprocessing can hand to a process that is being started: locks, queues, connections, torch's tensors.
    reducers = {
        **dispatch_table,
        **reduction.ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
        **cloudpickle.CloudPickler.dispatch_table,
    }
    # cloudpickle's own table is an attribute of the class, which an instance's would not override.
    pickler = type("JobPickler", (cloudpickle.CloudPickler,), {"dispatch_table": reducers})
    stream = io.BytesIO()
    pickler(stream, 5).dump(content)
    return stream.getvalue()


def start_process(context: BaseContext, target: Callable[..., None], parcel: Any, args: tuple[Any, ...]) -> BaseProcess:
    """A running process that calls `target(Parcel(parcel), *args)`.

    Raises:
        WorkerStartError: the parcel cannot be sent, or this process is itself being started without a guard.
        OSError: there are no descriptors, no memory or no processes left.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        _refuse()
    if context.get_start_method() == "fork":
        _await_imports()
        return _start(context, target, (Parcel(parcel), *args))
    _preload(context)
    resource_tracker.ensure_running()  # else it is started on the way, and unblocks SIGINT
    try:
        with _main_left_alone():
            return _start(context, target, (Parcel(parcel), *args))
    except _PICKLE_ERRORS as error:
        named = {"worker_init_fn" if name == "init_fn" else name: part for name, part in vars(parcel).items()}
        reason = name_culprit(named, _cloudpickle) or str(error)
    try:
        process = _start(context, target, (Parcel(parcel, by_reference=True), *args), name=_IMPORTER)
    except _PICKLE_ERRORS:
        raise WorkerStartError(
            "The dataset, collate_fn and worker_init_fn must be picklable to be sent to a worker under the start "
            f"method {context.get_start_method()!r}, but {reason}. Open files, connections and locks in the worker: on "
            "first use in __getitem__, or in __iter__."
        ) from None
    vars(process)[_REASON] = reason
    return process


_IMPORT_S = 1.0
_lasting: set[str] = set()  # modules whose import takes longer: perhaps as long as the program, which runs in it


def _await_imports() -> None:
    """Wait for other threads that import a module: a child that was forked meanwhile could never import it."""
    locks: dict[str, Any] = getattr(_bootstrap, "_module_locks", {})
    deadline = time.monotonic() + _IMPORT_S
    while being_imported := [name for name, lock in list(locks.items()) if _is_foreign(lock())]:
        if _lasting.issuperset(being_imported):
            return
        if time.monotonic() > deadline:
            _lasting.update(being_imported)
        time.sleep(0.001)


def _is_foreign(lock: Any) -> bool:
    return getattr(lock, "owner", None) not in (None, threading.get_ident())


_REASON = "_headrace_reason"


def why_imported(process: BaseProcess) -> str | None:
    """What could not be sent to a worker, so that it has to import the script; None if it has not."""
    return vars(process).get(_REASON)


def _refuse() -> None:
    """Start nothing in a process that is itself being started.

    A worker leaves without a word, and its loader tells why: one error instead of one from each worker.

    Raises:
        WorkerStartError: the process is not a worker.
    """
    if multiprocessing.current_process().name == _IMPORTER:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(NO_GUARD)
    raise WorkerStartError(f"A DataLoader with workers must not be started while a worker starts. {GUARD_HINT}")


_PICKLE_ERRORS = (pickle.PicklingError, TypeError, AttributeError, ValueError, NotImplementedError, RuntimeError)


def _start(
    context: BaseContext, target: Callable[..., None], args: tuple[Any, ...], name: str | None = None
) -> BaseProcess:
    process: BaseProcess = context.Process(target=target, name=name, args=args, daemon=True)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork in a process with threads; torch's and NumPy's own are always there.
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        # Ctrl-C goes to workers too, which do not know yet how to ignore it: they would all show a traceback.
        with block_interrupts() if _is_born_deaf(context) else nullcontext():
            process.start()
    return process


def _preload(context: BaseContext) -> None:
    """Let the fork server import what every worker needs, if it is not running and nobody else chose.

    What it imports unblocks SIGINT for its children: see `_is_born_deaf`.
    """
    if context.get_start_method() == "forkserver":
        from multiprocessing import forkserver

        server: Any = forkserver._forkserver
        if server._preload_modules == ["__main__"]:
            context.set_forkserver_preload([_SERVER_MODULE])


def _is_born_deaf(context: BaseContext) -> bool:
    """Whether SIGINT may be blocked as a process starts: not in a fork server that would not unblock it for others."""
    if context.get_start_method() != "forkserver":
        return True
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    return _SERVER_MODULE in server._preload_modules


class _IgnoredInterrupts:
    """Makes the process that unpickles it ignore SIGINT: a worker, until it has settled."""

    def __reduce__(self) -> Any:
        return signal.signal, (int(signal.SIGINT), int(signal.SIG_IGN))


class _Starting(threading.local):
    leaves_main_alone = False


_starting = _Starting()


class _main_left_alone:  # noqa: N801 (used like a function)
    """While it is entered, processes that this thread starts do not import the script of this one."""

    def __enter__(self) -> None:
        if spawn.get_preparation_data is not _preparation_data:
            spawn.get_preparation_data = _preparation_data
        _starting.leaves_main_alone = True

    def __exit__(self, *exc_info: object) -> None:
        _starting.leaves_main_alone = False


_original_preparation_data = spawn.get_preparation_data


def _preparation_data(name: str) -> dict[str, Any]:
    """What `multiprocessing` tells a new process; for everybody else as ever."""
    data = _original_preparation_data(name)
    if _starting.leaves_main_alone:
        data["headrace"] = _IgnoredInterrupts()
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data
