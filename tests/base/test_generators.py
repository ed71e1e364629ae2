"""Keys, the global generators, and those of workers: repeatable, restored, and seeded as torch seeds them."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base import generators
from headrace.base.generators import (
    GENERATORS,
    NumpyGenerator,
    PythonGenerator,
    TorchGenerator,
    derive_key,
    generator_states,
    restore_generators,
    seed_worker,
)
from tests.needs import HAS_TORCH, needs_torch
from tests.resuming import own_generators


def test_keys_are_the_same_on_every_machine_and_day():
    """A changed value would make every saved state resume into another order."""
    assert derive_key(0, 0, "shuffle") == 0x737131C866B173AE8FE8F3063ABD1C7C
    assert derive_key(-5, 3, "sample 12") == 0xDAB28EE6593DC8D349215F9CAD5ADF2F


def test_keys_have_128_bits_and_differ_in_half_of_them_from_their_neighbours():
    keys = [derive_key(seed, epoch, f"sample {i}") for seed in range(8) for epoch in range(8) for i in range(8)]
    assert len(set(keys)) == len(keys)
    assert max(keys).bit_length() == 128
    distances = [(a ^ b).bit_count() for a, b in pairwise(keys)]
    assert 62 < sum(distances) / len(distances) < 66


def test_numbers_do_not_run_into_each_other():
    """Seed 1 in epoch 23 is not seed 12 in epoch 3."""
    assert derive_key(1, 23, "a") != derive_key(12, 3, "a")
    assert derive_key(1, 2, "3,a") != derive_key(1, 23, "a")


def test_any_int_is_a_seed():
    assert len({derive_key(seed, 0, "a") for seed in (0, -1, 1, 2**64, -(2**64), 2**200)}) == 6


KINDS = {
    "random": (PythonGenerator(), random.random),
    "a normal number": (PythonGenerator(), lambda: random.gauss(0, 1)),
    "numpy": (NumpyGenerator(), lambda: float(np.random.rand())),
    "a normal number of numpy": (NumpyGenerator(), lambda: float(np.random.randn())),
}
if HAS_TORCH:
    import torch

    KINDS["torch"] = (TorchGenerator(), lambda: float(torch.rand(())))
    KINDS["a normal number of torch"] = (TorchGenerator(), lambda: float(torch.randn(())))


@pytest.fixture(params=KINDS)
def kind(request):
    with own_generators():
        yield KINDS[request.param]


def test_what_is_saved_comes_back(kind):
    generator, draw = kind
    draw()  # the second of a pair may be kept
    saved = generator.save()
    drawn = [draw() for _ in range(3)]
    generator.restore(saved)
    assert [draw() for _ in range(3)] == drawn


def test_a_seed_decides_what_is_drawn(kind):
    generator, draw = kind
    first = []
    for key in (2**127 + 5, 2**127 + 6, 2**127 + 5):
        draw()
        generator.seed(key)
        first.append([draw(), draw()])
    assert first[0] == first[2] != first[1]


def test_a_glance_notices_a_draw_and_nothing_else(kind):
    generator, draw = kind
    generator.settle()
    before = generator.glance()
    assert generator.glance() == before
    draw()
    assert generator.glance() != before


def test_each_generator_is_one_of_its_own():
    with own_generators():
        for i, generator in enumerate(GENERATORS):
            before = [other.glance() for other in GENERATORS]
            generator.seed(2**100 + 1)
            changed = [other.glance() != then for other, then in zip(GENERATORS, before, strict=True)]
            assert changed == [j == i and then is not None for j, then in enumerate(before)]


def test_numpys_other_bit_generators_are_looked_at_too():
    """Somebody may have put one in place of the Mersenne twister."""
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        generator = NumpyGenerator()
        glance, saved = generator.glance(), generator.save()
        drawn = np.random.rand()
        assert generator.glance() != glance
        generator.restore(saved)
        assert np.random.rand() == drawn
    finally:
        np.random.set_bit_generator(before)


def test_what_is_not_imported_is_not_imported_for_it():
    script = """
import sys
from headrace.base.generators import GENERATORS
for generator in GENERATORS:
    generator.settle()
    generator.seed(1)
    generator.restore(generator.save())
    generator.glance()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


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
from headrace.base.generators import *
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
    assert generators._LOW_32_BITS == 2**32 - 1
