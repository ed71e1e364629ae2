"""Composer: every row once over all ranks, torch's losses, and resumes that replay nothing."""

from __future__ import annotations

import functools
import importlib.util

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("composer") is None:  # its script imports it: it may need stand-ins
    pytest.skip("Composer is not installed", allow_module_level=True)

from tests.integrations.checks import everything
from tests.integrations.running import seen as seen_by
from tests.integrations.scripts.loaders import DEALT

PROCESSES = (1, 2)
seen = functools.partial(seen_by, "composer_suite.py")


def test_rows_and_weights_are_those_with_torchs_loader():
    for workers in (0, 2):
        assert seen(1)[f"plain, {workers}"] == seen(1)["torch"]


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize("processes", PROCESSES)
def test_every_row_once_over_all_processes(kind, processes):
    whole = seen(processes)[f"{kind}, 0"]
    n = len(whole[0][0]) // 2
    for first, last in ((0, n), (n, 2 * n)):
        assert sorted(row for one in whole for batch in one[0][first:last] for row in batch) == everything(kind)
    assert seen(processes)[f"{kind}, 2"] == whole


@pytest.mark.parametrize("kind", DEALT)
@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("place", ["middle", "last", "epoch"])
def test_a_resumed_training_goes_on_where_it_was(kind, processes, place):
    for one, resumed in zip(seen(processes)[f"{kind}, 0"], seen(processes)[f"{kind}, from {place}"], strict=True):
        done = 2 if place == "middle" else len(one[0]) // 2
        assert resumed == [one[0][done:], one[1]]


def test_what_the_documentation_shows_runs():
    assert seen(1)["documented"] == [[16, 6]]
