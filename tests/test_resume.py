"""A run that is stopped anywhere and gone on with elsewhere gives what the undisturbed one gives, bit for bit."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import BatchSampler, BucketBatchSampler, DataLoader, Dataset, RandomSampler, Sampler, StateError
from headrace.testing import FlakyDataset, HandDrivenEngine
from tests.needs import as_lists, needs_torch
from tests.resuming import (
    DRAW,
    INLINE,
    ORDERS,
    Config,
    Counting,
    Eager,
    Lazy,
    Noisy,
    Way,
    global_generators,
    interrupted,
    own_generators,
    plain,
    run,
    seed_generators,
    set_generators,
    stop_after,
    through_json,
    ways,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

UNSHARED = [draw for draw in DRAW if draw not in ("nothing", "rng")]
"""What threads would draw from one generator."""


def alike(got, want, in_order):
    """Whether two runs gave the same batches; out of order, the same in each epoch."""
    return got == want if in_order else sorted(map(repr, got)) == sorted(map(repr, want))


def seeded_configs(draws):
    return st.builds(
        Config,
        n=st.integers(1, 40),
        order=st.sampled_from(list(ORDERS)),
        batch_size=st.sampled_from([1, 2, 5, None]),
        drop_last=st.booleans(),
        seed=st.integers(-3, 2**70),
        draw=st.sampled_from(draws),
        in_order=st.booleans(),
    )


STOPS = st.lists(st.integers(0, 30), min_size=1, max_size=3)


@settings(deadline=None, max_examples=120)
@given(config=seeded_configs(list(DRAW)), stops=STOPS, data=st.data())
def test_with_a_seed(config, stops, data):
    """Random augmentations and further epochs included, whatever else has drawn random numbers meanwhile."""
    on_the_way = data.draw(st.lists(ways("inline", "any order"), min_size=len(stops) + 1, max_size=len(stops) + 1))
    with own_generators():
        want = run(config.loader(), 3)
        got = interrupted(config.loader, stops, on_the_way, 3, keeps=False)
    assert alike(got, want, config.in_order)


@settings(deadline=None, max_examples=25)
@given(config=seeded_configs(["nothing", "rng"]), stops=STOPS, data=st.data())
def test_with_a_seed_and_threads(config, stops, data):
    on_the_way = data.draw(st.lists(ways("inline", "threads"), min_size=len(stops) + 1, max_size=len(stops) + 1))
    with own_generators():
        want = run(config.loader(), 2)
        got = interrupted(config.loader, stops, on_the_way, 2, keeps=False)
    assert alike(got, want, config.in_order)


@settings(deadline=None, max_examples=5)
@given(config=seeded_configs(UNSHARED), stops=st.integers(1, 20), data=st.data())
def test_with_a_seed_and_processes(config, stops, data):
    on_the_way = [data.draw(ways("fork")), data.draw(ways("fork", "inline"))]
    with own_generators():
        want = run(config.loader(), 2)
        got = interrupted(config.loader, [stops], on_the_way, 2, keeps=False)
    assert alike(got, want, config.in_order)


def unseeded_configs():
    return st.builds(
        Config,
        n=st.integers(1, 40),
        order=st.sampled_from(list(ORDERS)),
        batch_size=st.sampled_from([1, 2, 5, None]),
        drop_last=st.booleans(),
        in_order=st.booleans(),
        own_generator=st.booleans(),
    )


@settings(deadline=None, max_examples=120)
@given(config=unseeded_configs(), stops=STOPS, data=st.data())
def test_without_a_seed(config, stops, data):
    """The order is in the state; the global generators are restored with the rest of the training."""
    on_the_way = data.draw(st.lists(ways("inline", "any order"), min_size=len(stops) + 1, max_size=len(stops) + 1))
    with own_generators():
        want = run(config.loader(), 2)
        seed_generators(0)
        got = interrupted(config.loader, stops, on_the_way, 2, keeps=True)
    assert alike(got, want, config.in_order)
