"""`make hunt` explores parity, too; otherwise the examples are the same in every run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .exploring import explore

CHOSEN = os.environ.get("HEADRACE_EXAMPLES", "same")


@pytest.fixture(autouse=True)
def profile_of_this_run() -> Iterator[None]:
    yield
    settings.load_profile(CHOSEN)


def examples(profile: str) -> list[int]:
    """What a property test of parity tries with the examples that HEADRACE_EXAMPLES names."""
    settings.load_profile(profile)
    tried: list[int] = []

    @explore(20)
    @given(st.integers(0, 2**60))
    def try_one(number: int) -> None:
        tried.append(number)

    try_one()
    return tried


def test_examples_are_the_same_in_every_run() -> None:
    assert examples("same") == examples("same")


def test_a_hunt_tries_others_each_time() -> None:
    assert len({tuple(examples("hunt")) for _ in range(3)}) > 1


def test_the_variable_that_make_hunt_sets_decides() -> None:
    assert explore(1).derandomize == (CHOSEN == "same")
