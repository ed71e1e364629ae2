"""Random numbers of a sample: by its key, learned with the first batch, and none of the loop's."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from headrace.base.generators import NumpyGenerator, PythonGenerator
from headrace.base.messages import Place
from headrace.base.randomness import SampleRandomness, enter_sample, own_samples, rng
from tests.resuming import own_generators


class Batches:
    """Makes batches of what a function draws for each of three samples, and counts them."""

    def __init__(self, draw, **options):
        self.draw = draw
        self.made = 0
        self.randomness = SampleRandomness(1, **options)

    def __call__(self, start, step=1, epoch=0):
        def make():
            self.made += 1
            self.randomness.enter_batch()
            return [self.draw(key) for key in self.randomness.over(range(start, start + 3 * step, step))]

        return self.randomness.make(Place(epoch, start, step), make)


@pytest.fixture(autouse=True)
def _own_generators():
    with own_generators(), own_samples():
        enter_sample(None)
        yield


def test_a_sample_has_the_same_numbers_in_any_batch():
    batches = Batches(lambda key: random.random())
    first, second = batches(0), batches(3)
    strided = Batches(lambda key: random.random())(0, step=2)  # as on the first of two ranks
    assert strided == [first[0], first[2], second[1]]
    assert batches(0) == first
    assert batches(0, epoch=1) != first


def test_all_three_and_rng_are_seeded():
    def draw(key):
        return random.random(), np.random.rand(), rng().random()

    first, second = Batches(draw)(0), Batches(draw)(0)
    assert first == second
    assert len({number for sample in first for number in sample}) == 9


def test_only_what_is_drawn_from_is_seeded_after_the_first_batch(monkeypatch):
    seeded = []
    for kind in (PythonGenerator, NumpyGenerator):
        seed = kind.seed
        monkeypatch.setattr(kind, "seed", lambda self, key, seed=seed: (seeded.append(type(self)), seed(self, key)))
    batches = Batches(lambda key: random.random())
    batches(0)
    assert set(seeded) == {PythonGenerator, NumpyGenerator}
    seeded.clear()
    batches(3)
    assert set(seeded) == {PythonGenerator}
    assert batches.made == 2


def test_a_batch_that_draws_from_another_one_is_made_again():
    def draw(key):
        return np.random.rand() if key >= 3 else 0.0

    batches = Batches(draw)
    batches(0)
    late = batches(3)
    assert batches.made == 3
    np.random.seed(9)
    other = Batches(draw)
    other(0)
    assert other(3) == late
    batches(6)
    assert batches.made == 4  # now it is known


def test_what_cannot_be_made_again_has_all_of_them_seeded():
    batches = Batches(lambda key: np.random.rand() if key >= 3 else 0.0, repeats=False)
    batches(0)
    late = batches(3)
    assert batches.made == 2
    assert Batches(lambda key: np.random.rand(), repeats=False)(3) == late


def test_the_loops_generators_are_given_back():
    batches = Batches(lambda key: random.random() + np.random.rand(), gives_back=True)
    before = random.getstate(), str(np.random.get_state())
    batches(0)
    assert (random.getstate(), str(np.random.get_state())) == before


def test_generators_that_threads_share_are_left_alone():
    batches = Batches(lambda key: rng().random(), shares_generators=True)
    before = random.getstate(), str(np.random.get_state())
    batches(0)
    assert (random.getstate(), str(np.random.get_state())) == before


def test_what_is_drawn_after_the_last_sample_is_the_batchs():
    randomness = SampleRandomness(1)
    drawn = []
    for start in (0, 4):

        def make():
            for _ in randomness.over(range(2)):
                rng().random()
            drawn.append(rng().random())

        randomness.make(Place(0, start, 1), make)
    assert drawn[0] != drawn[1]


def test_rng_is_one_generator_for_a_sample():
    enter_sample(5)
    first = rng()
    assert rng() is first
    drawn = first.random(3).tolist()
    enter_sample(6)
    assert rng().random(3).tolist() != drawn
    enter_sample(5)
    assert rng().random(3).tolist() == drawn


def test_rng_is_per_thread():
    enter_sample(5)
    own, others = rng(), []
    thread = threading.Thread(target=lambda: others.append(rng()))
    thread.start()
    thread.join()
    assert others[0] is not own


def test_rng_without_a_sample_follows_numpys_global_seed():
    drawn = []
    for _ in range(2):
        enter_sample(None)
        np.random.seed(4)
        drawn.append(rng().random())
    assert drawn[0] == drawn[1]


def test_samples_inside_leave_those_outside_alone():
    enter_sample(5)
    before = rng()
    with own_samples():
        enter_sample(6)
        assert rng() is not before
    assert rng() is before
