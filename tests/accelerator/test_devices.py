"""Batches on a device whose copies are late, whose memory is reused, and which is always behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import HAS_TORCH, needs_torch

if HAS_TORCH:
    from tests.accelerator import software

ROOT = Path(__file__).parents[2]
pytestmark = [
    needs_torch,
    pytest.mark.skipif(not HAS_TORCH or not software.is_possible(), reason="needs g++, and torch 2.13 or newer"),
]


def run(name: str) -> dict[str, list[str]]:
    """What the scenarios of this name found wrong."""
    software.build()
    command = [sys.executable, "-m", "tests.accelerator.scenarios", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    assert found
    return found


@pytest.mark.parametrize("name", ["correctness", "device_index", "memory", "born_pinned"])
def test_nothing_is_wrong(name):
    found = run(name)
    assert not {case: wrong for case, wrong in found.items() if wrong}


def test_a_copier_that_leaves_something_out_is_noticed():
    """Else the tests above would show nothing."""
    found = run("mutants")
    assert not found.pop("none")
    assert all(found.values()), found
