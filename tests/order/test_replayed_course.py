"""Replayed courses: samplers draw as in torch, and draw again to go on."""

from __future__ import annotations

import random
from itertools import islice

import numpy as np
import pytest

from headrace import BatchSampler, RandomSampler, Sampler, StateError
from headrace.base.messages import PackedIndices
from headrace.base.progress import Progress
from headrace.order.replayed_course import ReplayedCourse
from tests.resuming import (
    Counting,
    Eager,
    Lazy,
    Telling,
    global_generators,
    own_generators,
    seed_generators,
    set_generators,
    through_json,
)


def course_of(sampler, generator=None):
    return ReplayedCourse(sampler, generator, lambda: {"length": 10})


def values(keys):
    return [key.array.tolist() if isinstance(key, PackedIndices) else key for key in keys]


def draw(course, given, ahead=0):
    """The first keys, `given` of which the loop gets, and the place that is saved then."""
    progress = Progress(0)
    progress.keys = keys = course.begin(progress)
    drawn = values(islice(keys, given + ahead))
    for number in range(given):
        progress.give(number)
    return drawn, through_json(course.save(progress)), keys


SAMPLERS = {
    "ours": lambda: BatchSampler(RandomSampler(range(20)), 3, False),
    "eager": lambda: Eager(20),
    "lazy": lambda: Lazy(20),
    "with a state": lambda: Counting(20),
    "told the epoch": lambda: Telling(20),
}


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("given", [0, 1, 4])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_what_was_drawn_ahead_comes_first_and_then_the_drawing_goes_on(kind, given, ahead):
    with own_generators():
        drawn, saved, keys = draw(course_of(SAMPLERS[kind]()), given, ahead)
        generators = global_generators()
        rest = values(keys)
        set_generators(generators)
        again = course_of(SAMPLERS[kind]()).begin(Progress(0, batches=given, start=saved))
        assert values(again) == drawn[given:] + rest


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_replay_leaves_the_global_generators_as_they_are(kind):
    with own_generators():
        _, saved, _ = draw(course_of(SAMPLERS[kind]()), 4, 2)
        seed_generators(9)
        before = repr(global_generators())
        course_of(SAMPLERS[kind]()).begin(Progress(0, batches=4, start=saved))
        assert repr(global_generators()) == before


def test_a_sampler_with_a_state_is_not_drawn_from_again():
    class Watched(Counting):
        drawn = 0

        def __iter__(self):
            for key in super().__iter__():
                self.drawn += 1
                yield key

    _, saved, keys = draw(course_of(Watched(20)), 5, 2)
    rest = values(keys)
    sampler = Watched(20)
    again = course_of(sampler).begin(Progress(0, batches=5, start=saved))
    assert sampler.drawn == 0
    assert values(again)[2:] == rest
    assert sampler.drawn == 15


def test_generators_of_ones_own_are_set_back():
    def make():
        generator = np.random.Generator(np.random.PCG64(1))
        return course_of(BatchSampler(RandomSampler(range(20), generator=generator), 3, False), generator)

    _, saved, keys = draw(make(), 2)
    assert len(saved["replay"]["at_first"]["own"]) == 1  # it is one and the same
    assert values(make().begin(Progress(0, batches=2, start=saved))) == values(keys)


def test_at_the_edge_what_lasts_longer_than_an_epoch_is_put_back():
    generator = np.random.Generator(np.random.PCG64(1))
    course = course_of(Counting(4), generator)
    values(course.begin(Progress(0)))
    generator.random()
    saved = through_json(course.save(Progress(0, is_over=True)))
    drawn = generator.random()

    generator, sampler = np.random.Generator(np.random.PCG64(1)), Counting(4)
    course_of(sampler, generator).restore(saved)
    assert sampler.state_dict() == {"epoch": 1, "given": 0}
    assert generator.random() == drawn


def test_epochs_that_samplers_were_told_are_told_again():
    sampler = Telling(20)
    sampler.set_epoch(3)
    _, saved, keys = draw(course_of(sampler), 2)
    fresh = Telling(20)
    assert values(course_of(fresh).begin(Progress(3, batches=2, start=saved))) == values(keys)
    assert fresh.epoch == 3


def test_what_was_given_ahead_of_others_is_left_out():
    course = course_of(list(range(10)))
    progress = Progress(0)
    progress.keys = keys = course.begin(progress)
    values(islice(keys, 6))
    for number in (0, 1, 3, 5):
        progress.give(number)
    saved = through_json(course.save(progress))
    assert saved["ahead"] == [1, 3]
    again = course_of(list(range(10))).begin(Progress(0, batches=2, start=saved))
    assert values(again) == [2, 4, 6, 7, 8, 9]


def test_seek_draws_and_leaves_out():
    course = course_of(Eager(10))
    with own_generators():
        whole = values(course.begin(Progress(0)))
        seed_generators(0)
        assert values(course.begin(Progress(0, batches=4, start=course.seek(4)))) == whole[4:]


def test_draws_in_between_are_told_of_once():
    course = course_of(Lazy(20))
    with own_generators():
        progress = Progress(0)
        progress.keys = keys = course.begin(progress)
        for number in range(3):
            next(keys)
            progress.give(number)
            random.random()
        with pytest.warns(UserWarning, match="draws random numbers as it goes"):
            course.save(progress)
        course.save(progress)


def test_a_sampler_that_draws_from_another_generator_is_not_told_of():
    course = course_of(Lazy(20))  # draws from `random`
    with own_generators():
        progress = Progress(0)
        progress.keys = keys = course.begin(progress)
        for number in range(3):
            next(keys)
            progress.give(number)
            np.random.rand()
        course.save(progress)


def test_check():
    course = course_of(Eager(20))
    with own_generators():
        _, saved, _ = draw(course, 2)
    course.check(saved, is_edge=False)
    with pytest.raises(StateError, match="length = 10, and here it is 11"):
        ReplayedCourse(Eager(20), None, lambda: {"length": 11}).check(saved, is_edge=False)
    for name in saved["replay"]:
        damaged = {**saved, "replay": {key: value for key, value in saved["replay"].items() if key != name}}
        with pytest.raises(StateError, match=f"{name}.* is missing"):
            course.check(damaged, is_edge=False)
    with pytest.raises(StateError, match="given must be an int"):
        course.check({**saved, "replay": {**saved["replay"], "given": -1}}, is_edge=False)


def test_the_number_of_batches_is_the_samplers():
    assert course_of(BatchSampler(RandomSampler(range(20)), 3, False)).n_batches(0) == 7
    with pytest.raises(TypeError):
        course_of(iter(range(3))).n_batches(0)


def test_a_sampler_that_is_not_iterable_anew_is_asked_once_per_epoch():
    class Asked(Sampler):
        asked = 0

        def __iter__(self):
            self.asked += 1
            return iter(range(3))

    sampler = Asked()
    course = course_of(sampler)
    values(course.begin(Progress(0)))
    assert sampler.asked == 1
