"""Marks for tests that need an optional dependency, and batches of any framework as plain Python."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from headrace.batch.collate import Collator
from headrace.data import take
from headrace.frameworks import framework_of

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_JAX = importlib.util.find_spec("jax") is not None

needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
needs_jax = pytest.mark.skipif(not HAS_JAX, reason="needs jax")
without_torch = pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
without_jax = pytest.mark.skipif(HAS_JAX, reason="jax is installed")


def as_lists(batches: Iterable[Any]) -> list[Any]:
    """Each batch, one array of whatever framework, as a list."""
    return [np.asarray(batch).tolist() for batch in batches]


def find_take(dataset: Any) -> take.Take | None:
    """The dataset's way to a whole batch, in arrays of the default output."""
    collator = Collator(framework_of("auto"))
    return take.find_take(dataset, collator.framework, collator.convert)
