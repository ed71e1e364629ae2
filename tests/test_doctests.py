"""The examples in the docstrings run, with and without torch."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import headrace
from headrace.batch import collate

ROOT = Path(headrace.__file__).parent
WITH_EXAMPLES = [
    ".".join(("headrace", *path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.fixture(autouse=True)
def registry_as_it_was(monkeypatch):
    monkeypatch.setattr(collate, "_registry", dict(collate._registry))
    yield
    collate._resolved.clear()


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def test_there_are_examples():
    assert {"headrace.batch.sequences", "headrace.order.weights", "headrace.testing"} <= set(WITH_EXAMPLES)
