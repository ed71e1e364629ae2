"""The global generators: what is saved comes back, and whoever draws is noticed."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

from headrace.base.generators import GENERATORS, NumpyGenerator, PythonGenerator, TorchGenerator
from tests.needs import HAS_TORCH
from tests.resuming import own_generators

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
