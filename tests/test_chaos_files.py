"""A short run of the fuzzer of files; and files that it once found to crash, hang or raise what they should not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.optional import is_installed
from tools.chaos import files

ROOT = Path(__file__).parents[1]
RIGHT = {"read", "refused", "skipped"}
FOUND = {"parquet": [183, 404, 1407], "arrow": [137, 627, 1823], "sql": [0, 1, 7, 9, 11]}

pytestmark = pytest.mark.skipif(not is_installed("pyarrow"), reason="needs pyarrow")


def test_a_short_run():
    command = [sys.executable, "-m", "tools.chaos.files", "--seconds", "120", "--count", "40", "--seed", "100000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 40 files") == len(files.FORMATS)


@pytest.mark.parametrize("reader", FOUND)
def test_what_was_found(reader):
    for seed in FOUND[reader]:
        arguments = ["--reader", reader, "--seed", str(seed), "--count", "1", "--seconds", "60"]
        command = [sys.executable, "-m", "tools.chaos.files", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_crashes_hangs_and_bare_errors_are_attributed(monkeypatch):
    def judge(name, seed, folder):
        if seed == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        if seed == 5:
            time.sleep(60)
        return "read"

    monkeypatch.setattr(files, "judge", judge)
    monkeypatch.setattr(files, "_PATIENCE_S", 1.0)
    verdicts = dict(files.run("text", 0, 8, time.monotonic() + 60))
    assert verdicts == {**dict.fromkeys(range(8), "read"), 3: "a crash: SIGSEGV", 5: "a hang"}


@pytest.mark.parametrize("error", [KeyError("x"), AttributeError("x"), ValueError("something")])
def test_errors_that_do_not_help_are_wrong(monkeypatch, tmp_path, error):
    def read(path, draw):
        raise error

    monkeypatch.setitem(files.FORMATS, "text", replace(files.FORMATS["text"], read=read))
    assert files.judge("text", 1, str(tmp_path)) not in RIGHT
