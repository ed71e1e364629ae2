"""Errors that cross processes keep their type, their text and what they carry."""

from __future__ import annotations

import builtins
import json
import pickle
import sys
import threading

import pytest

from headrace import CollateError
from headrace.base.errors import RemoteTraceback, WorkerError
from headrace.engines.remote_errors import pack_error


def across(error, where="in worker 3"):
    """The error as the loader sees it."""
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001
        packed = pack_error(raised, where)
    return pickle.loads(pickle.dumps(packed, 5)).rebuild()


class TwoArgumentsError(Exception):
    def __init__(self, path, line):
        super().__init__(f"{path}:{line}")
        self.path = path
        self.line = line


class KeywordOnlyError(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")
        self.code = code


class PrefixedError(Exception):
    """Pickle would call it with its own text, which it would put a prefix to once more."""

    def __init__(self, path):
        super().__init__(f"no such file: {path}")
        self.path = path


class BrokenError(Exception):
    def __str__(self):
        raise RuntimeError("even this")


class HoldingError(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


def json_error():
    try:
        json.loads("{")
    except ValueError as error:
        return error
    raise AssertionError


def unicode_error():
    try:
        b"\xff".decode()
    except ValueError as error:
        return error
    raise AssertionError


ERRORS = [
    ValueError("bad"),
    KeyError("missing"),
    OSError(2, "No such file", "data.bin"),
    FileNotFoundError(2, "No such file", "data.bin"),
    StopAsyncIteration("x"),
    AssertionError(),
    Exception(1, "two", [3]),
    json_error(),
    unicode_error(),
    TwoArgumentsError("a.txt", 7),
    KeywordOnlyError(code=5),
    PrefixedError("x.bin"),
    HoldingError("held"),
    CollateError("shapes differ.", ("x", 1)),
    KeyboardInterrupt("stop"),
    SystemExit(3),
]


if sys.version_info >= (3, 11):
    ERRORS.append(vars(builtins)["ExceptionGroup"]("many", [ValueError("one"), KeyError("two")]))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_type_and_text_are_kept(error):
    back = across(error)
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_attributes_are_kept_where_they_can_be():
    assert (across(TwoArgumentsError("a.txt", 7)).path, across(TwoArgumentsError("a.txt", 7)).line) == ("a.txt", 7)
    assert across(KeywordOnlyError(code=5)).code == 5
    assert across(PrefixedError("x.bin")).path == "x.bin"
    assert across(CollateError("differ", ("x",))).path == ("x",)
    error = across(OSError(2, "No such file", "data.bin"))
    assert (error.errno, error.filename) == (2, "data.bin")


def test_the_cause_tells_where_and_how():
    def in_a_function():
        raise LookupError("deep")

    try:
        in_a_function()
    except LookupError as error:
        packed = pack_error(error, "in worker 3")
    back = packed.rebuild()
    assert type(back.__cause__) is RemoteTraceback
    assert back.__cause__.where == "in worker 3"
    assert "in_a_function" in str(back.__cause__)
    assert "LookupError: deep" in str(back.__cause__)


def test_the_chain_of_causes_is_in_the_text():
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        text = str(pack_error(error, "here").rebuild().__cause__)
    assert "KeyError: 'first'" in text
    assert "ValueError: second" in text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are new in Python 3.11")
def test_notes_are_kept():
    error = ValueError("bad")
    error.add_note("while reading shard 7")
    assert across(error).__notes__ == ["while reading shard 7"]


def test_a_local_type_travels_by_value():
    class LocalError(Exception):
        pass

    back = across(LocalError("here"))
    assert type(back).__name__ == "LocalError"
    assert str(back) == "here"


def test_an_error_whose_text_is_broken_is_an_error_all_the_same():
    back = across(BrokenError())
    assert isinstance(back, Exception)
    assert "BrokenError" in str(back) + repr(back)
    assert isinstance(back.__cause__, RemoteTraceback)


def test_what_cannot_be_rebuilt_here_is_told_by_a_worker_error():
    packed = pack_error(ValueError("bad"), "in worker 3")
    useless = type(packed)(b"nonsense", b"nonsense", "lib.TheirError", "the text", "in worker 3", "Traceback …")
    back = useless.rebuild()
    assert type(back) is WorkerError
    assert str(back) == "Caught lib.TheirError in worker 3: the text"
    assert back.__cause__.traceback == "Traceback …"


class LiarError(Exception):
    def __reduce__(self):
        return str, ("not an exception",)


def test_a_type_that_unpickles_as_something_else_is_not_believed():
    back = across(LiarError("really"))
    assert isinstance(back, Exception)
    assert "really" in str(back)
