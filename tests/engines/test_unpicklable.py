"""What cannot be pickled is named by the way to it."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from functools import partial
from types import SimpleNamespace

import cloudpickle
import pytest

from headrace.engines.unpicklable import name_culprit

LOCK = threading.Lock()


class Slotted:
    __slots__ = ("lock", "unset")

    def __init__(self):
        self.lock = LOCK


class Whole:
    """Refuses by itself, whatever it is made of."""

    def __reduce__(self):
        raise RuntimeError("not me")


def uses_the_lock():
    return LOCK


def with_closure():
    inner = threading.Lock()
    return lambda: inner


def by_value(function):
    """As if it were defined in the script."""
    function.__module__ = "__main__"
    return function


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (SimpleNamespace(transform=SimpleNamespace(size=3, lock=LOCK)), "dataset.transform.lock cannot be pickled"),
        (SimpleNamespace(parts=[1, {"lock": LOCK}]), "dataset.parts[1]['lock'] cannot"),
        (SimpleNamespace(parts=(1, Slotted())), "dataset.parts[1].lock cannot"),
        (partial(print, 1, LOCK), "dataset.args[1] cannot"),
        (partial(print, file=LOCK), "dataset.keywords['file'] cannot"),
        (SimpleNamespace(lock=LOCK).__eq__, "dataset cannot"),
        (with_closure(), "'inner' that dataset uses cannot"),
        (by_value(uses_the_lock), "the global 'LOCK' that dataset uses cannot"),
        (SimpleNamespace(part=Whole()), "dataset.part cannot be pickled (RuntimeError: not me)"),
        (LOCK, "dataset cannot be pickled (TypeError: cannot pickle '_thread.lock' object)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_is_named(value, words):
    assert name_culprit({"collate_fn": len, "dataset": value}, cloudpickle.dumps).startswith(words)


def test_methods_and_classes_of_the_script_are_looked_into():
    class Local:
        shared = LOCK

    assert name_culprit({"dataset": Local()}, cloudpickle.dumps).startswith("Local.shared cannot")
    owner = SimpleNamespace(lock=LOCK)
    method = by_value(lambda self: None).__get__(owner)
    assert name_culprit({"collate_fn": method}, cloudpickle.dumps).startswith("collate_fn.__self__.lock cannot")


def test_what_can_be_pickled_is_no_culprit():
    assert name_culprit({"dataset": [1, 2]}, pickle.dumps) is None


def test_locks_of_multiprocessing_are_no_culprits():
    """They can be pickled only while a process is being started."""
    value = SimpleNamespace(shared=multiprocessing.get_context("spawn").Lock(), lock=LOCK)
    assert name_culprit({"dataset": value}, cloudpickle.dumps).startswith("dataset.lock cannot")


def test_a_thing_that_holds_itself_is_searched_to_an_end():
    endless = SimpleNamespace()
    endless.me = endless
    endless.lock = LOCK
    assert "cannot be pickled" in name_culprit({"dataset": endless}, cloudpickle.dumps)
