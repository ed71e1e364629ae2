"""What all commands have in common: help, version, exit codes, and a clear word where something is missing."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

import headrace
import headrace.cli
from headrace.cli.app import app

COMMANDS = ["run", "tune", "top", "doctor", "inspect", "bench", "demo"]


def test_help_names_every_command():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert [name for name in COMMANDS if f" {name} " not in result.stdout] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_with_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"headrace {command} " in result.stdout.split("Usage:", 1)[1].split("\n", 1)[1]


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"headrace {version('headrace')}\n")
    assert headrace.__version__ == version("headrace")


@pytest.mark.parametrize("arguments", [["-h"], ["tune", "-h"], ["--help"]])
def test_the_module_runs_as_a_program(arguments):
    done = subprocess.run([sys.executable, "-m", "headrace", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Usage: headrace" in done.stdout


@pytest.mark.parametrize("arguments", [["fly"], ["doctor", "--fast"], ["tune"], ["inspect", "a.csv", "--samples", "x"]])
def test_wrong_usage_is_told_without_a_traceback(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
    assert "Traceback" not in result.stderr


def test_without_typer_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(headrace.cli, "is_installed", lambda name: name != "typer")
    with pytest.raises(SystemExit, match=r"^headrace: .*pip install 'headrace\[cli\]'$"):
        headrace.cli.main()


@pytest.mark.parametrize("command", [["run", __file__], ["bench"], ["demo"]])
def test_without_torch_one_line_says_what_to_install(command, monkeypatch):
    for module in ("run", "torch_bench", "torch_demo"):
        monkeypatch.setattr(f"headrace.cli.{module}.is_installed", lambda name: name != "torch")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "pip install 'headrace[torch]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["nothing"], ["tune"], ["bench", "--wrong"], ["demo", "--steps", "x"]], ids=str)
def test_wrong_arguments_give_one_line(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
    with pytest.raises(SystemExit) as left:
        headrace.cli.main()
    assert left.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert told.err.startswith("headrace: ")
