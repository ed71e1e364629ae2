"""Exceptions that pickle badly, or not at all: the loop still sees what happened, and where."""

from __future__ import annotations

import threading
import traceback

import pytest

from headrace import DataLoader, RemoteTraceback, WorkerError
from tests.failures.outcomes import Each, outcomes, told
from tests.failures.scripts import needs_proc, run_script


class ManyArgumentsError(Exception):
    """Cannot be rebuilt from its `args`, as pickle tries."""

    def __init__(self, path, *, line):
        super().__init__(f"{path}, line {line}")
        self.path = path
        self.line = line


class NoArgumentsError(Exception):
    def __init__(self):
        super().__init__("made by itself")


class UnpicklableError(ManyArgumentsError):
    def __init__(self, path, *, line):
        super().__init__(path, line=line)
        self.lock = threading.Lock()


class MissingFieldError(KeyError):
    def __init__(self, field):
        super().__init__(field)
        self.field = field


class HoldsLockError(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class BrokenTextError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class BrokenReprError(ValueError):
    def __repr__(self):
        raise RuntimeError("no repr")


class ReducesToNonsenseError(Exception):
    def __reduce__(self):
        return int, ("7",)


class KillsItsReaderError(Exception):
    """Unpickles to something that is no exception, after a detour."""

    def __reduce__(self):
        return _raise, ("not here",)


def _raise(text):
    raise OSError(text)


def only_error(make):
    def fail(index):
        if index == 1:
            raise make()
        return index

    seen = outcomes(DataLoader(Each(fail, 4), num_workers=2))
    assert [seen[0], seen[2], seen[3]] == [[0], [2], [3]]
    assert type(seen[1].__cause__) is RemoteTraceback
    assert "in fail" in seen[1].__cause__.traceback
    assert "batch 1, sample 1" in told(seen[1])
    "".join(traceback.format_exception(seen[1]))  # can be shown
    return seen[1]


def test_a_constructor_with_other_arguments():
    error = only_error(lambda: ManyArgumentsError("train.csv", line=7))
    assert type(error) is ManyArgumentsError
    assert (str(error), error.path, error.line) == ("train.csv, line 7", "train.csv", 7)


def test_a_constructor_without_arguments():
    error = only_error(NoArgumentsError)
    assert type(error) is NoArgumentsError
    assert str(error) == "made by itself"


def test_a_key_error_of_a_kind():
    error = only_error(lambda: MissingFieldError("label"))
    assert type(error) is MissingFieldError
    assert error.field == "label"
    assert isinstance(error, KeyError)


@pytest.mark.parametrize(
    ("make", "text"),
    [(lambda: HoldsLockError("the lock is held"), "the lock"), (lambda: UnpicklableError("a.csv", line=3), "a.csv")],
)
def test_what_cannot_be_pickled_keeps_its_type_and_text(make, text):
    error = only_error(make)
    assert type(error) is type(make())
    assert text in str(error)


def test_a_broken_text():
    error = only_error(lambda: BrokenTextError("hidden"))
    assert "BrokenTextError" in told(error)
    assert isinstance(error, (BrokenTextError, WorkerError))
    str(error)


def test_a_broken_repr():
    assert str(only_error(lambda: BrokenReprError("plain"))) == "plain"


@pytest.mark.parametrize("kind", [ReducesToNonsenseError, KillsItsReaderError])
def test_a_reduce_that_does_not_give_it_back(kind):
    error = only_error(lambda: kind("what happened"))
    assert kind.__name__ in told(error)
    assert "what happened" in told(error)


def test_a_local_class_stays_readable():
    class LocalError(ValueError):
        pass

    error = only_error(lambda: LocalError("from inside"))
    assert type(error).__name__ == "LocalError" or "LocalError" in str(error)
    assert "from inside" in str(error)
    assert isinstance(error, (ValueError, WorkerError))


def test_a_group_of_exceptions():
    groups = pytest.importorskip("builtins")
    if not hasattr(groups, "ExceptionGroup"):
        pytest.skip("needs Python 3.11")
    error = only_error(lambda: groups.ExceptionGroup("two", [ValueError("one"), OSError("other")]))
    assert [type(each) for each in error.exceptions] == [ValueError, OSError]


def test_notes_travel():
    def noted():
        error = ValueError("bad")
        if hasattr(error, "add_note"):
            error.add_note("look at the manual")
        return error

    assert "look at the manual" in told(only_error(noted)) or not hasattr(ValueError(), "add_note")


def test_an_exception_from_a_library_with_a_c_type():
    def decode():
        try:
            b"\xff".decode("utf-8")
        except UnicodeDecodeError as error:
            return error

    error = only_error(decode)
    assert type(error) is UnicodeDecodeError
    assert (error.start, error.object) == (0, b"\xff")


@needs_proc
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_class_of_the_script(tmp_path, method):
    source = f"""
    class ScriptError(Exception):
        def __init__(self, path, line):
            super().__init__(f"{{path}}:{{line}}")

    class Bad(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            raise ScriptError("train.csv", 3)

    for _ in range(1):
        try:
            next(iter(DataLoader(Bad(), num_workers=1, output="numpy", multiprocessing_context="{method}")))
        except ScriptError as error:
            print(type(error).__name__, error, type(error.__cause__).__name__)
    """
    ended = run_script(tmp_path, source)
    assert ended.stdout == "ScriptError train.csv:3 RemoteTraceback\n"
    assert (ended.code, ended.stderr) == (0, "")
