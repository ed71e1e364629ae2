"""Warnings point at the user's line, from any depth of headrace, and some come once."""

from __future__ import annotations

import linecache
import pickle
import warnings

import pytest

from headrace.base.warning import WarnOnce, warn_user


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
