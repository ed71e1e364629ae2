"""States: generators as plain values and back, and refusals that give the reason."""

from __future__ import annotations

import json
import pickle
import random

import numpy as np
import pytest

from headrace import StateError
from headrace.base.state import (
    check_equal,
    check_seal,
    load_generator,
    load_generators,
    parse_generators,
    parse_header,
    parse_own_generators,
    save_generator,
    save_generators,
    seal,
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


def test_what_differs_is_named():
    check_equal({"a": 1, "b": None, "of a later version": 3}, {"a": 1, "b": None})
    with pytest.raises(StateError, match=r"taken with b = 2, and here it is 3\. Load it into a loader with the same b"):
        check_equal({"a": 1, "b": 2}, {"a": 1, "b": 3})
    with pytest.raises(StateError, match="taken with b = None, and here it is 3"):
        check_equal({"a": 1}, {"a": 1, "b": 3})


# States


def header(**others):
    return {"headrace": 1, "epoch": 2, "batches": 3, "errors": 0, "base_seed": None, "course": {}, **others}


@pytest.mark.parametrize("name", ["epoch", "batches", "errors", "base_seed", "course"])
def test_a_header_has_all_entries(name):
    state = header()
    del state[name]
    with pytest.raises(StateError, match=f"it must be a mapping with {name}, got"):
        parse_header(state, "a stream")


@pytest.mark.parametrize("value", [-1, 1.0, "1", True, [], 2**200])
@pytest.mark.parametrize("name", ["epoch", "batches", "errors", "base_seed", "shared_seed"])
def test_a_header_has_counts(name, value):
    with pytest.raises(StateError, match=f"damaged: {name} must be an int"):
        parse_header(header(**{name: value}), "a stream")


def test_the_state_of_another_kind_is_refused():
    sealed = seal(header(kind="a stream"))
    assert parse_header(sealed, "a stream") == sealed
    with pytest.raises(StateError, match="taken with 'a stream', and this is 'an iterable dataset'"):
        parse_header(sealed, "an iterable dataset")


@pytest.mark.parametrize("name", ["kind", "digest"])
def test_a_seal_cannot_be_taken_off(name):
    sealed = seal(header(kind="a stream"))
    del sealed[name]
    with pytest.raises(StateError, match="both kind and digest"):
        parse_header(sealed, "a stream")


def test_what_a_trainer_adds_is_left_out():
    sealed = seal(header(kind="a stream"))
    assert parse_header({**sealed, "_iterator_finished": False, "_rank": {"x": 1}}, "a stream") == sealed


class Opaque:
    pass


COURSES = {
    "plain": {"position": 20, "weights": [0.5, 1e300], "nothing": None, "flag": True},
    "int keys": {1: {2: "a"}, None: 1, False: 2},
    "tuples": {"place": (3, (4, "é\ud800"))},
    "long numbers": {"state": 2**127 + 1},
    "of a user's own": {"dataset": {"array": np.arange(3), "object": Opaque()}},
    "deep": json.loads("[" * 300 + "]" * 300),
}


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_a_seal_holds(course):
    check_seal(seal(header(course=course)))


@pytest.mark.parametrize("name", ["plain", "int keys", "tuples", "long numbers", "deep"])
def test_a_seal_outlives_json_and_sorting(name):
    sealed = seal(header(course=COURSES[name]))
    check_seal(json.loads(json.dumps(sealed)))
    check_seal(pickle.loads(pickle.dumps(sealed)))
    check_seal(dict(reversed(sealed.items())))


def test_a_state_that_was_altered_is_refused():
    for name, value in {"epoch": 3, "batches": 4, "errors": 1, "course": {"place": [0, 1]}, "digest": "0"}.items():
        with pytest.raises(StateError, match="altered after state_dict"):
            check_seal({**seal(header(course={"place": [0, 0]})), name: value})


def test_a_state_of_a_former_version_has_no_seal():
    check_seal(header())


@pytest.mark.parametrize("kind", OWN)
def test_damaged_states_of_generators_are_refused(kind):
    """Each number, string and list of it, one at a time: none must reach a library that trusts it."""
    generator = OWN[kind]()
    saved = through_json(save_generator(generator))
    assert parse_own_generators([saved], [generator], "own") == [saved]
    drawn = draw_from(OWN[kind]())
    n = 0
    for damaged in damage(saved):
        n += 1
        with pytest.raises(StateError):
            parse_own_generators([damaged], [generator], "own")
    assert n >= 5
    assert draw_from(generator) == drawn


def test_damaged_states_of_the_global_generators_are_refused():
    saved = through_json(save_generators())
    assert parse_generators(saved, "global") == saved
    for damaged in damage(saved):
        with pytest.raises(StateError):
            parse_generators(damaged, "global")


def damage(value):
    """The value with one of its parts missing, or of another type or size."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield {other: value[other] for other in value if other != name}
            yield from ({**value, name: damaged} for damaged in damage(part))
    elif isinstance(value, list):
        yield value[:-1]
        yield [*value, 0]
        for i in range(min(len(value), 5)):
            yield from ([*value[:i], damaged, *value[i + 1 :]] for damaged in damage(value[i]))
    elif isinstance(value, str):
        yield from (value + "x", 3, [], {})
    elif isinstance(value, float):
        yield from ("3", [], {}, True)
    elif value is not None:
        yield from (-1, 2**200, "3", [], {}, True)
