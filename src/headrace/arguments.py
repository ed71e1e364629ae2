"""Checks of the DataLoader's arguments: the errors are of the type that torch raises for the same mistake."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from headrace.batch.padding import pad_collate

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext


def check_workers(num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool) -> None:
    if num_workers < 0:
        raise ValueError(
            f"num_workers option should be non-negative, got {num_workers}. Pass num_workers=0 to load in this process."
        )
    if timeout < 0:
        raise ValueError(f"timeout option should be non-negative, got {timeout}.")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            f"prefetch_factor option could only be specified with num_workers > 0, got {prefetch_factor}. Leave it out."
        )
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError(f"prefetch_factor option should be non-negative, got {prefetch_factor}.")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0: there are no workers to keep.")


def check_policies(engine: Any, on_error: Any, max_errors: Any, on_worker_death: Any) -> None:
    if isinstance(engine, str) and engine not in ("processes", "threads"):
        raise ValueError(f"engine must be 'processes', 'threads' or an engine object, got {engine!r}.")
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}.")
    if max_errors is not None and on_error == "raise":
        raise ValueError("max_errors needs on_error='skip': otherwise the first error is raised.")
    if max_errors is not None and max_errors < 0:
        raise ValueError(f"max_errors must not be negative, got {max_errors}. None allows any number.")
    if on_worker_death not in ("raise", "restart"):
        raise ValueError(f"on_worker_death must be 'raise' or 'restart', got {on_worker_death!r}.")


def check_iterable(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    given = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
    for name, value in given.items():
        if value is not None and not (name == "shuffle" and value in {False}):
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value!r}. The "
                "order of an iterable dataset is its own."
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


def check_collate(collate_fn: Any) -> None:
    if collate_fn is pad_collate:
        raise TypeError("collate_fn must be the function that pad_collate() returns: add the parentheses.")


def checked_context(context: Any, num_workers: int) -> BaseContext | None:
    if context is None:
        return None
    if not num_workers > 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}."
        )
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


def warn_of_many_workers(num_workers: int) -> None:
    get_affinity = getattr(os, "sched_getaffinity", None)
    cores = len(get_affinity(0)) if get_affinity is not None else os.cpu_count() or 1
    if num_workers > cores:
        warnings.warn(
            f"This DataLoader will create {num_workers} workers, but this process may use {cores} CPU cores only. More "
            "workers than cores make loading slow, unless they mostly wait.",
            stacklevel=3,
        )
