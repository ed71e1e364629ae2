"""Finds what keeps a dataset from being sent to a worker: `dataset.transform.lock`, or a global that a method uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from types import FunctionType, MethodType
from typing import Any, cast

_DEPTH = 8  # a search goes down one failing part at a time


def name_culprit(named: Mapping[str, Any], check: Callable[[Any], object]) -> str | None:
    """The innermost part of some values that cannot be pickled, and why, in words; None if there is none.

    Args:
        named: the values, by their names.
        check: raises if its argument cannot be pickled.
    """
    culprit = None
    parts: Iterable[tuple[str, Any]] = named.items()
    with _rehearsal():
        for _ in range(_DEPTH):
            failing = ((*part, error) for part in parts if (error := _error_of(part[1], check)) is not None)
            found = next(failing, None)
            if found is None:
                break
            path, value, error = found
            culprit = f"{path} cannot be pickled ({type(error).__name__}: {error})"
            parts = _parts(path, value)
    return culprit


@contextmanager
def _rehearsal() -> Iterator[None]:
    """While a process is being started: the locks and queues of `multiprocessing` can be pickled only then."""
    spawning = get_spawning_popen()
    set_spawning_popen(cast("Any", _NoProcess()))
    try:
        yield
    finally:
        set_spawning_popen(spawning)


class _NoProcess:
    """Stands in for the process."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd


def _error_of(value: Any, check: Callable[[Any], object]) -> Exception | None:
    try:
        check(value)
    except Exception as error:  # noqa: BLE001 (whatever pickling raises)
        return error
    return None


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` is pickled with, each with its name."""
    match value:
        case Mapping():
            yield from ((f"{path}[{key!r}]", part) for key, part in list(value.items()))
        case list() | tuple() | set() | frozenset():
            yield from ((f"{path}[{place}]", part) for place, part in enumerate(value))
        case partial(func=function, args=arguments, keywords=keywords):
            yield from [(f"{path}.func", function), (f"{path}.args", arguments), (f"{path}.keywords", keywords)]
        case MethodType(__self__=owner, __func__=function):
            yield from [(f"{path}.__self__", owner), (path, function)]
        case FunctionType():
            yield from _outer_names(path, value)
        case type():
            methods = [(name, part) for name, part in vars(value).items() if isinstance(part, FunctionType)]
            yield from ((f"{value.__name__}.{name}", part) for name, part in methods)
            yield from ((f"{value.__name__}.{name}", part) for name, part in vars(value).items() if name[:2] != "__")
        case _:
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            names = [*getattr(value, "__dict__", ()), *(name for name in slots if hasattr(value, name))]
            yield from ((f"{path}.{name}", getattr(value, name, None)) for name in names)
            yield path, type(value)


def _outer_names(path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The names that a function takes from around it, which are pickled along if it is sent by value."""
    used = inspect.getclosurevars(function)
    yield from ((f"the global {name!r} that {path} uses", part) for name, part in used.globals.items())
    yield from ((f"{name!r} that {path} uses", part) for name, part in used.nonlocals.items())
