"""Stream courses: pulls without end, and where each worker's stream goes on."""

from __future__ import annotations

from itertools import islice

import pytest

from headrace import StateError
from headrace.base.messages import Place, PlacedKeys, Pull, StreamStart
from headrace.base.progress import Progress
from headrace.order.stream_course import StreamCourse

DESCRIBED = {"batch_size": 3}


def course(seed=None, batch_size=3):
    return StreamCourse(batch_size, seed, DESCRIBED)


def test_pulls_without_end():
    assert list(islice(course().begin(Progress(2)), 3)) == [Pull(3)] * 3
    assert list(islice(course(batch_size=None).begin(Progress(2)), 2)) == [Pull(None)] * 2


def test_with_a_seed_they_tell_the_epoch():
    assert next(course(seed=5).begin(Progress(2))) == PlacedKeys(Pull(3), Place(2, 0, 0))


def followed():
    progress = Progress(2, workers=3, follows_lanes=True)
    progress.give_from(0, None)
    progress.give_from(1, {"dataset": 7, "has_ended": False})
    progress.end_lane(0)
    return progress


def test_every_worker_goes_on_where_it_was():
    saved = course().save(followed())
    assert course().starts(2, saved) == (
        StreamStart(2, 1, 3, None, True),
        StreamStart(2, 1, 3, {"dataset": 7, "has_ended": False}, False),
        StreamStart(2, 0, 3, None, False),
    )
    assert saved["last_lane"] == 1


@pytest.mark.parametrize("progress", [Progress(2, is_over=True, batches=4), Progress(2)])
def test_at_an_edge_there_is_nothing_to_tell(progress):
    saved = course().save(progress)
    assert saved == {"described": {"batch_size": 3, "seed": None}}
    assert course().starts(3, saved) is None


def test_check():
    saved = course().save(followed())
    course().check(saved, is_edge=False)
    with pytest.raises(StateError, match="seed = None, and here it is 5"):
        course(seed=5).check(saved, is_edge=False)
    with pytest.raises(StateError, match="a lane for each worker"):
        course().check({**saved, "lanes": saved["lanes"][:2]}, is_edge=False)
    with pytest.raises(StateError, match="workers must be an int"):
        course().check({**saved, "workers": None}, is_edge=False)


def test_nobody_knows_the_number_of_batches():
    with pytest.raises(TypeError, match="knows no number of batches"):
        course().n_batches(0)
