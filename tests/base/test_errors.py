"""The tree of errors: which built-in types they are, and what they say."""

from __future__ import annotations

import pickle

import pytest

from headrace import CollateError, CollateTypeError, HeadraceError, InternalError, MissingExtraError
from headrace.base.errors import (
    RemoteTraceback,
    TooManyBadSamplesError,
    WorkerDiedError,
    WorkerError,
    WorkerStartError,
    WorkerTimeoutError,
)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (CollateError, RuntimeError),
        (CollateTypeError, TypeError),
        (MissingExtraError, ImportError),
        (TooManyBadSamplesError, RuntimeError),
        (WorkerError, RuntimeError),
        (WorkerDiedError, WorkerError),
        (WorkerStartError, WorkerError),
        (WorkerTimeoutError, WorkerError),
    ],
)
def test_each_is_a_headrace_error_and_what_torch_would_raise(error, builtin):
    assert issubclass(error, HeadraceError)
    assert issubclass(error, builtin)


def test_internal_errors_are_nobody_elses_type():
    assert InternalError.__bases__ == (HeadraceError,)


def test_the_path_of_a_field_grows_from_the_inside_out():
    error = CollateError("shapes differ.")
    assert str(error) == "shapes differ."
    assert str(error.within("x").within(0)) == "In the field sample[0]['x']: shapes differ."
    assert type(error.within("x")) is CollateError


def test_a_field_error_survives_pickling():
    error = pickle.loads(pickle.dumps(CollateTypeError("no such type", ("a", 1))))
    assert type(error) is CollateTypeError
    assert (error.reason, error.path) == ("no such type", ("a", 1))


def test_a_remote_traceback_survives_pickling_and_says_where():
    error = pickle.loads(pickle.dumps(RemoteTraceback("in worker 3", "Traceback …")))
    assert (error.where, error.traceback) == ("in worker 3", "Traceback …")
    assert str(error) == "raised in worker 3.\nOriginal Traceback …"


def test_the_public_errors_of_workers_can_be_imported_from_the_package():
    import headrace

    for name in ("WorkerError", "WorkerDiedError", "WorkerStartError", "WorkerTimeoutError", "TooManyBadSamplesError"):
        assert hasattr(headrace, name)
