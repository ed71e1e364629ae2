"""The generators of workers: seeded as torch seeds them, and restored to where they were."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base import seeding
from headrace.base.seeding import generator_states, restore_generators, seed_worker
from tests.needs import HAS_TORCH, needs_torch


@pytest.fixture(autouse=True)
def _generators_as_they_were():
    before = generator_states()
    threads = None
    if HAS_TORCH:
        import torch

        threads = torch.get_num_threads()
    yield
    restore_generators(before)
    if HAS_TORCH:
        torch.set_num_threads(threads)


def draws():
    drawn = [random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn())]
    if HAS_TORCH:
        import torch

        drawn += torch.rand(3).tolist()
    return drawn


@needs_torch
@settings(deadline=None, max_examples=200)
@given(base_seed=st.integers(0, 2**63 - 1), worker=st.integers(0, 500))
def test_numpy_is_seeded_with_the_words_that_torch_generates(base_seed, worker):
    from torch.utils.data._utils.worker import _generate_state

    seed_worker(base_seed, worker)
    ours = np.random.get_state()
    np.random.seed(_generate_state(base_seed, worker))
    theirs = np.random.get_state()
    assert ours[0] == theirs[0]
    assert (ours[1] == theirs[1]).all()
    assert ours[2:] == theirs[2:]


@needs_torch
@pytest.mark.parametrize("base_seed", [0, 7, 2**62 + 12345])
def test_random_and_torch_start_from_base_seed_plus_worker(base_seed):
    import torch

    for worker in (0, 3):
        seed = seed_worker(base_seed, worker)
        assert seed == base_seed + worker
        assert torch.initial_seed() == seed
        assert torch.get_num_threads() == 1
        drawn = random.random(), torch.rand(2).tolist()
        random.seed(seed)
        torch.manual_seed(seed)
        assert drawn == (random.random(), torch.rand(2).tolist())


def test_workers_draw_differently_and_repeatably():
    def drawn(base_seed, worker):
        seed_worker(base_seed, worker)
        return draws()

    seen = [drawn(base_seed, worker) for base_seed in (1, 2) for worker in range(3)]
    assert len({tuple(values) for values in seen}) == len(seen)
    assert drawn(1, 2) == seen[2]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), n=st.integers(0, 700))
def test_states_are_saved_and_restored(seed, n):
    seed_worker(seed, 0)
    for _ in range(n):
        random.random()
        np.random.rand()
    random.gauss(0, 1)  # half of a pair is kept
    np.random.randn()
    states = pickle.loads(pickle.dumps(generator_states()))
    expected = draws()
    draws()
    restore_generators(states)
    assert generator_states() == states
    assert draws() == expected


def test_states_are_equal_if_nothing_was_drawn_and_differ_if_something_was():
    before = generator_states()
    assert generator_states() == before
    for draw in (random.random, np.random.rand):
        draw()
        after = generator_states()
        assert after != before
        before = after


@needs_torch
@pytest.mark.parametrize("restore", [False, True])
def test_torch_is_seeded_when_it_is_imported_and_not_before(restore):
    script = f"""
import sys
from headrace.base.seeding import *
seed_worker(1000, 4)
states = generator_states()
assert states[2] is None
if {restore}:
    restore_generators((*states[:2], bytes({restore!r} and STATE)))
assert "torch" not in sys.modules
import torch
print(torch.initial_seed(), torch.get_num_threads(), torch.rand(1).item())
"""
    import torch

    generator = torch.Generator().manual_seed(55 if restore else 1004)
    state = generator.get_state().numpy().tobytes()
    script = script.replace("STATE", repr(state))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    seed, threads, drawn = result.stdout.split()
    assert threads == "1"
    assert float(drawn) == torch.rand(1, generator=generator).item()
    if not restore:
        assert seed == "1004"


def test_a_seed_beyond_64_bits_of_base_and_worker():
    assert seed_worker(2**63 - 1, 2) == 2**63 + 1
    assert seeding._LOW_32_BITS == 2**32 - 1
