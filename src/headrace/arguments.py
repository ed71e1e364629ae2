"""Checks of the DataLoader's arguments: the errors are of the type that torch raises for the same mistake."""

from __future__ import annotations

import math
import operator
import os
from numbers import Real
from typing import TYPE_CHECKING, Any

from headrace.base.errors import warn_user
from headrace.base.interrupts import hold_interrupts
from headrace.base.optional import is_installed, loaded, missing_extra
from headrace.base.user_classes import in_short

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext


def check_workers(num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool) -> None:
    _check_integer("num_workers", num_workers, "Pass num_workers=0 to load in this process.")
    if num_workers < 0:
        raise ValueError(
            f"num_workers option should be non-negative, got {num_workers}. Pass num_workers=0 to load in this process."
        )
    if not isinstance(timeout, Real):
        raise TypeError(f"timeout option should be a number of seconds, got {timeout!r}. Pass 0 to wait for ever.")
    if timeout < 0 or not math.isfinite(timeout):
        raise ValueError(f"timeout option should be non-negative, and finite, got {timeout}. Pass 0 to wait for ever.")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            f"prefetch_factor option could only be specified with num_workers > 0, got {prefetch_factor}. Leave it out."
        )
    if prefetch_factor is not None:
        _check_integer("prefetch_factor", prefetch_factor, "Leave it out to load 2 batches ahead in each worker.")
        if prefetch_factor < 0:
            raise ValueError(f"prefetch_factor option should be non-negative, got {prefetch_factor}.")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0: there are no workers to keep.")


def _check_integer(name: str, value: Any, advice: str) -> None:
    """NumPy's integers are as good as Python's."""
    try:
        operator.index(value)
    except TypeError:
        raise TypeError(f"{name} option should be an integer, got {value!r}. {advice}") from None


def check_policies(engine: Any, on_error: Any, max_errors: Any, on_worker_death: Any, max_restarts: Any = None) -> None:
    if not (engine in ("processes", "threads", "ray") if isinstance(engine, str) else _is_engine(engine)):
        kind = ValueError if isinstance(engine, str) else TypeError
        raise kind(f"engine must be 'processes', 'threads', 'ray' or an engine object, got {engine!r}.")
    if engine == "ray" and not is_installed("ray"):
        raise missing_extra("ray", "engine='ray'")
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}.")
    if max_errors is not None and on_error == "raise":
        raise ValueError("max_errors needs on_error='skip': otherwise the first error is raised.")
    if max_errors is not None:
        _check_integer("max_errors", max_errors, "None allows any number.")
        if max_errors < 0:
            raise ValueError(f"max_errors must not be negative, got {max_errors}. None allows any number.")
    if on_worker_death not in ("raise", "restart"):
        raise ValueError(f"on_worker_death must be 'raise' or 'restart', got {on_worker_death!r}.")
    if on_worker_death == "restart" and engine not in ("processes", "ray") and not hasattr(engine, "make_engine"):
        raise ValueError(
            f"on_worker_death='restart' needs worker processes or Ray, got engine={engine!r}. Leave it out: threads "
            "die with the whole process only."
        )
    if max_restarts is not None:
        if on_worker_death != "restart":
            raise ValueError("max_restarts needs on_worker_death='restart': otherwise no worker is replaced.")
        _check_integer("max_restarts", max_restarts, "None is 30 and one for each worker.")
        if max_restarts < 1:
            raise ValueError(
                f"max_restarts must be at least 1, got {max_restarts}. Leave out on_worker_death='restart'."
            )


def _is_engine(engine: Any) -> bool:
    if isinstance(engine, type):
        return False
    return hasattr(engine, "make_engine") or all(hasattr(engine, name) for name in ("start", "submit", "receive"))


def checked_seed(seed: Any, shard: Any, generator: Any) -> int | None:
    """`seed` as an int, if it is one, and the only source of randomness.

    Raises:
        TypeError, ValueError: it is not.
    """
    if generator is not None and not (seed is None and shard is None):
        raise ValueError("seed (which shard implies) is mutually exclusive with generator: nothing is drawn from it.")
    if seed is None:
        return None
    try:
        if isinstance(seed, bool):
            raise TypeError
        return operator.index(seed)
    except TypeError:
        raise TypeError(f"seed must be an int or None, got {seed!r}.") from None


def checked_count(name: str, value: Any) -> int:
    """`value`, if it is an int of at least 0.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be an int of at least 0, got {value!r}.")
    return value


def check_iterable(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    given = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
    for name, value in given.items():
        if value is not None and not (name == "shuffle" and value in {False}):
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value!r}. The "
                "order of an iterable dataset is its own. To shuffle a headrace.Stream, call its shuffle() instead: "
                "DataLoader(stream.shuffle())."
            )


def check_order(batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: Any) -> None:
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle: the sampler decides the order.")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ValueError(
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last: the batch "
            "sampler decides all of them."
        )
    if batch_sampler is None and batch_size is None and drop_last:
        raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last.")


def check_quarantine(quarantine: Any, on_error: Any) -> None:
    if quarantine is not None and on_error != "skip":
        raise ValueError("quarantine keeps what is left out: pass on_error='skip', too.")


def check_snapshots(every: Any, save_generators: Any, engine: Any, seed: Any, *, is_stream: bool) -> None:
    _check_integer("snapshot_every_n_steps", every, "1 asks for the state of a dataset after each batch.")
    if every < 1:
        raise ValueError(f"snapshot_every_n_steps must be at least 1, got {every}.")
    if not save_generators:
        return
    if seed is not None or is_stream:
        raise ValueError(
            "save_generators is for random numbers that no seed decides, in datasets by key and iterable datasets. "
            f"{'Leave it out' if seed is not None else 'Pass seed= instead'}: with a seed, all of them resume anyway."
        )
    if engine == "threads":
        raise ValueError(
            "save_generators needs worker processes: threads share the global generators. Pass seed= instead, and draw "
            "from headrace.rng()."
        )


def check_callables(collate_fn: Any, worker_init_fn: Any) -> None:
    sequences = loaded("headrace.batch.sequences")  # else nobody can have passed its function
    if sequences is not None and collate_fn is sequences.pad_collate:
        raise TypeError("collate_fn must be the function that pad_collate() returns: add the parentheses.")
    if collate_fn is not None and not callable(collate_fn):
        raise TypeError(f"collate_fn must be a function of a list of samples, got {collate_fn!r}.")
    if worker_init_fn is not None and not callable(worker_init_fn):
        raise TypeError(f"worker_init_fn must be a function of the worker's number, got {worker_init_fn!r}.")


def check_destination(device: Any, output: Any) -> None:
    """`device` speaks of torch's devices, so batches must be torch's."""
    if device is None or output not in ("numpy", "jax"):
        return
    advice = {
        "numpy": "NumPy arrays are always in the host's memory. Leave device out, or pass output='torch'.",
        "jax": "Batches are put on JAX's default device. Leave device out, and choose another one with "
        "jax.config.update('jax_default_device', jax.devices(...)[0]).",
    }
    raise ValueError(f"device needs torch tensors, got device={device!r} with output={output!r}. {advice[output]}")


def checked_context(context: Any, num_workers: int, engine: Any = "processes") -> BaseContext | None:
    if context is None:
        return None
    if not num_workers > 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}."
        )
    if engine != "processes":
        raise ValueError(
            f"multiprocessing_context can only be used with worker processes, but got engine={engine!r}. Leave it out."
        )
    with hold_interrupts():  # importlib would lose one
        import multiprocessing  # slow to import, and needed with workers only

    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {methods!r}, but got "
                f"{context!r}."
            )
        return multiprocessing.get_context(context)
    if not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, "
            f"but got {context!r}."
        )
    return context


def warn_of_many_workers(num_workers: int, engine: Any = "processes") -> None:
    if engine not in ("processes", "threads"):
        return  # they may be elsewhere
    get_affinity = getattr(os, "sched_getaffinity", None)
    cores = len(get_affinity(0)) if get_affinity is not None else os.cpu_count() or 1
    if num_workers > cores:
        usable = "1 CPU core" if cores == 1 else f"{cores} CPU cores"
        warn_user(
            f"This DataLoader will create {num_workers} workers, but this process may use {usable} only. More "
            "workers than cores make loading slow, unless they mostly wait."
        )


def shown(loader: Any) -> str:
    """A loader in one line: what it loads, in which order, and by whom; of the rest, what is not as usual."""
    values = vars(loader)
    parts = [in_short(values.get("dataset"))]
    if values.get("batch_size") is None and values.get("batch_sampler") is not None:
        parts.append(f"batch_sampler={type(values['batch_sampler']).__name__}")
    else:
        parts.append(f"batch_size={values.get('batch_size')}")
        if not values.get("_iterable"):
            parts.append(f"sampler={type(values.get('sampler')).__name__}")
    parts += [f"{name}={values[name]!r}" for name in ("seed", "shard") if values.get(name) is not None]
    parts.append(f"num_workers={values.get('num_workers')}")
    if values.get("num_workers"):
        parts.append(f"engine={values.get('engine')!r}")
    parts += [f"{name}={values[name]!r}" for name, usual in _USUAL.items() if values.get(name, usual) != usual]
    return f"{type(loader).__name__}({', '.join(parts)})"


_USUAL = {
    "drop_last": False,
    "persistent_workers": False,
    "output": "auto",
    "device": None,
    "on_error": "raise",
    "on_worker_death": "raise",
    "max_restarts": None,
}
