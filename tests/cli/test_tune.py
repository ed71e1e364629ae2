"""`headrace tune` finds the dataset that is named, and prints the line to write."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.cli.tune import find_dataset

SOURCE = """
numbers = list(range(50))

class Holder:
    inner = numbers

def make():
    return numbers

def fail():
    raise OSError("no such bucket")

class Broken(list):
    def __getitem__(self, index):
        raise KeyError("lost")

broken = Broken(numbers)
empty = []
"""

PARSING = """
import argparse
arguments = argparse.ArgumentParser()
arguments.add_argument("--size", type=int, default=20)
numbers = list(range(arguments.parse_args().size))
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    (tmp_path / "some_data.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["headrace"])
    return "some_data.py"


@pytest.mark.parametrize("name", ["numbers", "make", "Holder.inner"])
def test_a_dataset_is_found_by_path_and_by_module(source, name):
    assert find_dataset(f"{source}:{name}") == list(range(50))
    assert find_dataset(f"some_data:{name}") == list(range(50))


def test_the_line_to_write_comes_last(source):
    result = CliRunner().invoke(app, ["tune", f"{source}:make", "--batch-size", "10", "--seconds", "0.5"])
    assert result.exit_code == 0, result.stderr
    assert "in this process" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("DataLoader(dataset, batch_size=10, num_workers=")


def test_a_script_that_parses_its_arguments_finds_none_of_ours(tmp_path):
    (tmp_path / "parsing.py").write_text(PARSING)
    command = [sys.executable, "-m", "headrace", "tune", "parsing.py:numbers", "--batch-size", "5", "--seconds", "0.2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("DataLoader(dataset, batch_size=5,")


def test_a_script_that_exits_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["headrace"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaving.py").write_text("import sys; sys.exit(7)")
    result = CliRunner().invoke(app, ["tune", "leaving.py:numbers"])
    assert result.exit_code == 2
    assert "calls sys.exit(7)" in result.stderr


@pytest.mark.parametrize(
    ("target", "code", "complaint"),
    [
        ("some_data.py", 2, "module:name or path.py:name"),
        ("nowhere.py:make", 2, "there is no file nowhere.py"),
        ("no_such_module:make", 2, "cannot be imported: ModuleNotFoundError"),
        ("some_data.py:missing", 2, "there is no missing in some_data.py"),
        ("some_data.py:fail", 2, "raised OSError: no such bucket"),
        ("some_data.py:broken", 1, "KeyError: 'lost'"),
        ("some_data.py:empty", 1, "The dataset is empty"),
    ],
)
def test_wrong_input_is_told_in_one_line(source, target, code, complaint):
    result = CliRunner().invoke(app, ["tune", target, "--seconds", "0.2"])
    assert result.exit_code == code
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
