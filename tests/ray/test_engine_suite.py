"""What every engine promises holds for Ray actors, too: the shared suite, on the cluster."""

from __future__ import annotations

import pytest

from headrace.engines.engine import EngineOptions
from headrace.engines.ray_options import RayEngine
from tests.engines import test_engines
from tests.engines.test_engines import closing

_OF_OTHERS = {  # of single engines
    "test_a_closed_engine_writes_to_no_descriptor",
    "test_a_closed_engine_keeps_neither_descriptors_nor_shared_memory",  # gRPC keeps connections for a while
    "test_a_script_without_a_guard_whose_parts_are_its_own",
    "test_an_engine_that_is_dropped_ends_its_workers",
}
for _name, _test in vars(test_engines).items():
    if _name.startswith("test_") and "without_workers" not in _name and _name not in _OF_OTHERS:
        globals()[_name] = _test


@pytest.fixture(params=["ray"])
def ahead(request):
    yield from closing(RayEngine().make_engine(EngineOptions(2, 2)))


@pytest.fixture(params=["ray"])
def engine(request):
    yield from closing(RayEngine().make_engine(EngineOptions(2, 2)))
