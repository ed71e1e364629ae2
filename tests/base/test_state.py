"""States: generators as plain values and back, and refusals that give the reason."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from headrace import StateError
from headrace.base.state import (
    check_ahead,
    check_counts,
    check_equal,
    load_generator,
    load_generators,
    save_generator,
    save_generators,
)
from tests.needs import HAS_TORCH, needs_torch
from tests.resuming import DRAW, own_generators, through_json

OWN = {
    "random": lambda: random.Random(3),
    "legacy numpy": lambda: np.random.RandomState(3),
    "numpy, PCG64": lambda: np.random.Generator(np.random.PCG64(3)),
    "numpy, Philox": lambda: np.random.Generator(np.random.Philox(3)),
    "numpy, MT19937": lambda: np.random.Generator(np.random.MT19937(3)),
    "numpy, SFC64": lambda: np.random.Generator(np.random.SFC64(3)),
}
if HAS_TORCH:
    import torch

    OWN["torch"] = lambda: torch.Generator().manual_seed(3)


def draw_from(generator):
    if hasattr(generator, "manual_seed"):
        return [float(torch.rand((), generator=generator)), float(torch.randn((), generator=generator))]
    normal = generator.gauss if isinstance(generator, random.Random) else generator.normal
    return [generator.random(), normal(0, 1)]


@pytest.mark.parametrize("draw", [draw for draw in DRAW if draw != "rng"])
def test_the_global_generators_come_back(draw):
    with own_generators():
        DRAW[draw]()
        saved = through_json(save_generators())
        drawn = [DRAW[draw]() for _ in range(3)]
        load_generators(saved)
        assert [DRAW[draw]() for _ in range(3)] == drawn


def test_the_global_generators_are_small():
    assert len(json.dumps(save_generators())) < 16_000


@pytest.mark.parametrize("kind", OWN)
def test_a_generator_of_ones_own_comes_back(kind):
    generator, other = OWN[kind](), OWN[kind]()
    draw_from(generator)
    saved = through_json(save_generator(generator))
    drawn = [draw_from(generator) for _ in range(3)]
    load_generator(other, saved)
    assert [draw_from(other) for _ in range(3)] == drawn


def test_something_else_has_no_state():
    assert save_generator(object()) is None
    load_generator(object(), None)  # and nothing is done to it


@pytest.mark.parametrize("taken", OWN)
@pytest.mark.parametrize("loaded", ["random", "legacy numpy", "numpy, PCG64"])
def test_another_kind_is_refused(taken, loaded):
    if taken.split(",")[0] == loaded.split(",")[0]:
        return
    with pytest.raises(StateError, match="another kind of generator"):
        load_generator(OWN[loaded](), save_generator(OWN[taken]()))


@needs_torch
def test_numpys_state_is_refused_by_a_generator_of_torch():
    with pytest.raises(StateError, match="another kind of generator"):
        load_generator(OWN["torch"](), save_generator(OWN["random"]()))


@pytest.mark.parametrize("value", [-1, 1.0, "1", True, None, []])
def test_what_is_no_count(value):
    check_counts({"a": 0, "b": 2**70}, "a", "b")
    with pytest.raises(StateError, match="b must be an int of at least 0, got"):
        check_counts({"a": 0, "b": value}, "a", "b")
    with pytest.raises(StateError, match="b must be an int"):
        check_counts({"a": 0}, "a", "b")


@pytest.mark.parametrize("ahead", ["x", None, [0], [-1], [1.0], [True], {"1": 1}, (1, 2)])
def test_what_are_no_numbers_ahead(ahead):
    check_ahead({"ahead": [1, 5]})
    check_ahead({})
    with pytest.raises(StateError, match="ahead must be a list of positive ints"):
        check_ahead({"ahead": ahead})


def test_what_differs_is_named():
    check_equal({"a": 1, "b": None, "of a later version": 3}, {"a": 1, "b": None})
    with pytest.raises(StateError, match=r"taken with b = 2, and here it is 3\. Load it into a loader with the same b"):
        check_equal({"a": 1, "b": 2}, {"a": 1, "b": 3})
    with pytest.raises(StateError, match="taken with b = None, and here it is 3"):
        check_equal({"a": 1}, {"a": 1, "b": 3})
