"""A short chaos, and that the machinery around it sees what it must see."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.chaos import faults, trials
from tools.chaos.loaders import Configuration, Way
from tools.chaos.trials import Part, WrongError, run_part, try_once

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.mark.timeout(240)
def test_a_short_chaos(tmp_path):
    # Mutated files and interrupts have tests of their own.
    parts = ["--only", "faults", "resumes", "states"]
    command = [
        sys.executable,
        "-m",
        "tools.chaos",
        *parts,
        "--seconds",
        "10",
        "--seed",
        "1",
        "--scripts",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=220)
    assert not done.returncode, done.stdout[-5000:] + done.stderr[-2000:]
    assert not list(tmp_path.iterdir())
    for words in ("faults", "resumes", "states", "refused"):
        assert words in done.stdout


@dataclass(frozen=True)
class Odd:
    """A trial of which some go wrong."""

    number: int = 0
    what: str = "fails"
    spare: tuple[int, ...] = ()

    def run(self, folder):
        if self.number % 3:
            return Counter(good=1)
        match self.what:
            case "fails":
                raise WrongError("It is odd.")
            case "dies":
                os._exit(1)
            case "hangs":
                time.sleep(1000)
            case "leaks":
                os.open("/dev/null", os.O_RDONLY)
        return Counter()


@pytest.mark.parametrize(
    ("what", "told"),
    {"fails": "It is odd.", "dies": "died", "hangs": "It hangs.", "leaks": "descriptors are left"}.items(),
)
def test_what_goes_wrong_is_seen(tmp_path, monkeypatch, capfd, what, told):
    monkeypatch.setattr(trials, "LONGEST_S", 1 if what == "hangs" else 60)
    drawn = iter(range(10**6))
    part = Part("odd", lambda chance: Odd(next(drawn), what, (7, 8)), per_process=2)
    summary = run_part(part, 1, 0.5, 2, tmp_path)
    assert summary.failures
    assert all(told in failure for failure in summary.failures)
    scripts = sorted(path.read_text() for path in tmp_path.iterdir())
    assert len(scripts) == len(summary.failures)
    assert "from tests.test_chaos import *" in scripts[0]
    if what == "fails":
        assert any("replay(Odd(number=0, what='fails', spare=()))" in script for script in scripts)  # the simplest
    assert "FAILURE odd" in capfd.readouterr().out


def test_everything_follows_from_the_seed():
    for part in (
        faults,
        __import__("tools.chaos.resumes", fromlist=["draw"]),
        __import__("tools.chaos.states", fromlist=["draw"]),
    ):
        trial = part.draw(random.Random("1-x-2"))
        assert part.draw(random.Random("1-x-2")) == trial
        names = {**vars(part), **vars(sys.modules["tools.chaos.loaders"])}
        assert eval(repr(trial), names) == trial  # scripts make it again


def test_a_wrong_batch_is_seen(tmp_path, monkeypatch):
    """A restart that forgets what the dead worker had drawn is what the trials are there for."""
    from headrace.engines import seat

    monkeypatch.setattr(seat, "restore_worker", lambda states: None)
    trial = faults.Faults(Configuration(n=30, seed=None, draw="rng"), Way("processes", 1, 1), deaths=((20, "SIGKILL"),))
    _, wrong = try_once(trial, tmp_path)
    assert wrong is not None
    assert "is wrong" in wrong
