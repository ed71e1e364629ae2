"""Every kind of loader gives the recorded batches on Ray, and resumes from recorded states; all on one pool."""

from __future__ import annotations

import pytest

from headrace import RayPool
from tests.recorded.__main__ import HASHES, SAVED, read
from tests.recorded.cases import CASES, STATES, WAYS
from tests.recorded.files import write_files

RECORDED, RECORDED_STATES = read(HASHES), read(SAVED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("recorded"))


def with_pool(names, check):
    with RayPool(2) as pool:
        WAYS["ray"] = {"num_workers": 2, "engine": pool}
        try:
            wrong = [name for name in names if not check(name)]
        finally:
            del WAYS["ray"]
    assert not wrong


def test_batches_are_those_recorded(folder):
    names = [name for name, case in CASES.items() if "processes" in case.ways and case.can_run]
    assert len(names) > 50
    with_pool(names[::2], lambda name: CASES[name].hashes(folder, "ray") == RECORDED[name])


def test_states_of_other_engines_load(folder):
    names = [name for name in STATES if not name.startswith("iterable")]

    def resumes(name):
        recorded = RECORDED_STATES[name]
        return STATES[name].resume(folder, recorded["state"], "ray") == recorded["rest"]

    with_pool(names, resumes)
