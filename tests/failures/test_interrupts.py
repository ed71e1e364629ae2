"""Ctrl-C at random moments; `python -m tools.chaos.interrupts` does the same for as long as it is given."""

from __future__ import annotations

import random

import pytest

from tests.failures.scripts import needs_proc, run_script
from tools.chaos.interrupts import KINDS, Program

pytestmark = needs_proc


@pytest.mark.parametrize("number", range(10))
def test_a_program_that_is_interrupted_at_a_random_moment(tmp_path, monkeypatch, number):
    monkeypatch.setattr("tools.chaos.interrupts.SLOW_S", 5.0)  # on a busy machine; what waits for a sample takes longer
    program = Program.draw(random.Random(f"tests/{number}"))
    verdict = program.run(tmp_path)
    assert verdict.failures in ([], ["void"]), str(verdict)


MOMENTS = [(moment, engine) for moment in ("break", "collect", "exit") for engine in ("threads", "fork")]


@pytest.mark.parametrize(("moment", "engine"), MOMENTS)
def test_a_program_that_leaves_an_epoch_with_a_slow_sample_in_flight(tmp_path, monkeypatch, moment, engine):
    monkeypatch.setattr("tools.chaos.interrupts.SLOW_S", 5.0)
    program = Program(
        kind="map", engine=engine, moment=moment, after_s=0.02, slow="sleep", persistent=False, prepares=False,
        catches=False, group=True, width=1, step=0, last=3,
    )  # fmt: skip
    verdict = program.run(tmp_path)
    assert not verdict.failures, str(verdict)


_WATCH = """
from importlib.abc import MetaPathFinder


class Watch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            print("unheld import:", name, flush=True)


sys.meta_path.insert(0, Watch())
"""


@pytest.mark.parametrize("engine", ["inline", "threads", "fork", "forkserver", "spawn"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_imported_while_importlib_could_lose_an_interrupt(tmp_path, kind, engine):
    """Its weak-reference callbacks are written in Python: a KeyboardInterrupt that is raised in one is ignored."""
    program = Program(
        kind=kind, engine=engine, moment="exit", after_s=0, slow="", persistent=False, prepares=False, catches=False,
        group=True, width=1, step=0, last=3,
    )  # fmt: skip
    ended = run_script(tmp_path, program.script().replace("\ndef main():", _WATCH + "\n\ndef main():"), bare=True)
    assert ended.code == 0, ended.stderr
    assert "leaving" in ended.stdout
    assert "unheld import" not in ended.stdout
