"""The tree of errors and what they say; warnings point at the user's line, from any depth of headrace."""

from __future__ import annotations

import linecache
import pickle
import warnings

import pytest

from headrace import CollateError, CollateTypeError, HeadraceError, InternalError, MissingExtraError
from headrace.base.errors import (
    RemoteTraceback,
    TooManyBadSamplesError,
    WarnOnce,
    WorkerDiedError,
    WorkerError,
    WorkerStartError,
    WorkerTimeoutError,
    warn_user,
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


def in_headrace(source, name, **names):
    """A function that Python takes for one of headrace's."""
    namespace = {"__name__": "headrace.engines.made_up", **names}
    exec(source, namespace)
    return namespace[name]


def test_the_place_is_the_nearest_line_outside_of_headrace():
    inner = in_headrace("def inner(): warn_user('text')", "inner", warn_user=warn_user)
    outer = in_headrace("def outer(): inner()", "outer", inner=inner)
    for call in (inner, outer):
        with pytest.warns(UserWarning, match="text") as caught:
            call()
        assert caught[0].filename == __file__
        assert linecache.getline(__file__, caught[0].lineno).strip() == "call()"


def test_other_packages_with_a_similar_name_are_users():
    namespace = {"__name__": "headrace_tools.train", "warn_user": warn_user}
    exec(compile("def train(): warn_user('text')", "train.py", "exec"), namespace)
    with pytest.warns(UserWarning, match="text") as caught:
        namespace["train"]()
    assert caught[0].filename == "train.py"


def test_without_any_user_the_outermost_frame_is_told():
    namespace = {"__name__": "headrace.made_up", "warn_user": warn_user}
    with pytest.warns(UserWarning, match="text"):
        exec("warn_user('text')", namespace)


def test_once_is_once():
    warn = WarnOnce()
    with pytest.warns(UserWarning, match="first") as caught:
        warn("first")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("second")
        pickle.loads(pickle.dumps(warn))("third")  # a copy has told it, too
