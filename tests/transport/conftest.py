"""Starts what `multiprocessing` keeps for good before any test counts descriptors."""

from __future__ import annotations

import pytest

from tests.engines.jobs import start_helpers_of_multiprocessing


@pytest.fixture(autouse=True, scope="session")
def _helpers_of_multiprocessing():
    start_helpers_of_multiprocessing()
