"""What users say of workers on Ray is checked at once, and what is missing is named; no cluster is needed."""

from __future__ import annotations

import importlib.util
import pickle
import sys

import pytest

from headrace import DataLoader, MissingExtraError, MultiStreamDataLoader, RayEngine, RayPool
from headrace.base.optional import is_installed

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    is_installed.cache_clear()
    yield
    is_installed.cache_clear()


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(range(4), num_workers=1, engine="ray"),
        lambda: MultiStreamDataLoader([[1, 2, 3]], 1, num_workers=1, engine="ray"),
        RayEngine,
        lambda: RayPool(2),
    ],
)
def test_without_ray_the_extra_is_named(no_ray, make):
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[ray\]'"):
        make()


@needs_ray
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"placement": "far"}, "placement must be one of 'spread', 'pack', 'local', got 'far'"),
        ({"num_cpus": -1}, "num_cpus must not be negative, got -1"),
        ({"min_workers": 0}, "min_workers must be at least 1, got 0"),
        ({"min_workers": 4, "max_workers": 2}, "min_workers=4 must not exceed max_workers=2"),
    ],
)
def test_wrong_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        RayEngine(**arguments)


@needs_ray
def test_how_many_seats_and_actors_there_are():
    assert RayEngine().lanes(0) == 0
    assert RayEngine().lanes(3) == 3
    assert RayEngine(max_workers=5).lanes(0) == 5
    assert RayEngine(min_workers=2, max_workers=5).lanes(8) == 8
    assert RayPool(4).lanes(0) == 4
    assert RayPool(4).lanes(2) == 2
    assert RayEngine()._limits(6) == (6, 6)
    assert RayEngine(max_workers=4)._limits(6) == (1, 4)
    assert RayEngine(min_workers=3)._limits(6) == (3, 6)
    assert RayEngine(min_workers=3, max_workers=9)._limits(2) == (2, 2)


@needs_ray
def test_without_workers_the_loop_loads_itself():
    assert [batch.tolist() for batch in DataLoader(range(4), 2, engine="ray", output="numpy")] == [[0, 1], [2, 3]]
    loader = DataLoader(range(4), 2, engine=RayEngine(), output="numpy")
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


@needs_ray
def test_a_pool_stays_in_its_process():
    with pytest.raises(TypeError, match="A RayPool without a name cannot be sent to another process"):
        pickle.dumps(RayPool(2))
    assert pickle.loads(pickle.dumps(RayEngine(num_cpus=2))) == RayEngine(num_cpus=2)
