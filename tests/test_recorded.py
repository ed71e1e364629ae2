"""Seeds give the batches that they gave in earlier versions, and states saved by these load.

A difference means that every training in progress would go on with other data. `python -m tests.recorded` records anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recorded.__main__ import HASHES, SAVED, read
from tests.recorded.cases import CASES, STATES, WAYS
from tests.recorded.files import write_files

RECORDED = read(HASHES)
RECORDED_STATES = read(SAVED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("recorded"))


def test_each_case_is_recorded() -> None:
    assert list(RECORDED) == list(CASES)
    assert list(RECORDED_STATES) == list(STATES)


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, case in CASES.items() for way in case.ways])
def test_batches_are_those_recorded(folder: Path, name: str, way: str) -> None:
    case = CASES[name]
    if not case.can_run:
        pytest.skip(f"needs {case.needs}")
    assert case.hashes(folder, way) == RECORDED[name]


@pytest.mark.filterwarnings("ignore:.*is iterated again")  # a dataset without a state
@pytest.mark.parametrize("way", ["inline", "processes"])
@pytest.mark.parametrize("name", STATES)
def test_recorded_states_load(folder: Path, name: str, way: str) -> None:
    case = STATES[name]
    if way == "processes" and name.startswith("iterable"):
        way = "inline"  # the lanes of users' iterables belong to as many workers as there were
    recorded: dict[str, Any] = RECORDED_STATES[name]
    assert case.resume(folder, recorded["state"], way) == recorded["rest"]


def test_kinds_of_workers_are_all_covered() -> None:
    assert {way for case in CASES.values() for way in case.ways} == set(WAYS)
