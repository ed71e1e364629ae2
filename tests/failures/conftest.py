"""The engines that most failures are tried on, and shorter waits for workers that do not leave."""

from __future__ import annotations

import pytest

ENGINES = {
    "inline": {},
    "threads": {"num_workers": 2, "engine": "threads"},
    "processes": {"num_workers": 2},
}


@pytest.fixture(params=ENGINES)
def engine(request):
    """Arguments of a loader, for every engine."""
    return ENGINES[request.param]


@pytest.fixture(params=["threads", "processes"])
def workers(request):
    """Arguments of a loader, for the engines with workers."""
    return ENGINES[request.param]


@pytest.fixture
def short_grace(monkeypatch):
    """Workers that are stuck are not waited for as long as usual."""
    monkeypatch.setattr("headrace.base.endings._GRACE_S", 0.2)
