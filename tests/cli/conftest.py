"""What the tests of the commands share."""

from __future__ import annotations

import importlib.util

import pytest

from headrace.cli.pictures import plot_ratios


@pytest.fixture(scope="session")
def fonts_are_open(tmp_path_factory):
    """matplotlib keeps the files of its fonts open, once it has drawn something; that is nobody's fault."""
    if importlib.util.find_spec("matplotlib") is not None:
        plot_ratios(["a", "b"], [0.5, 40.0], tmp_path_factory.mktemp("fonts") / "first.png")
