"""Unmodified scripts give the same losses, exit codes and tracebacks as under `python`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("torch")

from typer.testing import CliRunner

from headrace.cli.app import app
from tests.once import made_once

SCRIPTS = Path(__file__).parent / "scripts"


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=SCRIPTS,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def headrace_run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "headrace.cli", "run", *arguments, **environment)


def losses(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a script printed; ranks print in any order."""
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return sorted(done.stdout.splitlines())


def test_an_image_classifier_with_random_augmentation_learns_the_same():
    served = headrace_run("train_images.py")
    assert losses(served) == losses(python("train_images.py"))
    assert re.search(r"^headrace: the loader at train_images.py:\d+:$", served.stderr, re.MULTILINE)
    assert "12 batches of 2 epochs" in served.stderr


def test_a_text_model_with_its_own_collate_function_learns_the_same(tmp_path):
    served = headrace_run("--timeline", str(tmp_path / "loading.html"), "train_text.py")
    assert losses(served) == losses(python("train_text.py"))
    told = re.findall(r"^headrace: the loader at train_text.py:\d+(.*):$", served.stderr, re.MULTILINE)
    assert told == ["", ", the longest of 2 like it"]  # for training, and for validation, anew in each epoch
    assert {path.name for path in tmp_path.iterdir()} == {"loading.html", "loading-2.html"}


@pytest.fixture(scope="module")
def ranks_alone(tmp_path_factory) -> list[str]:
    return made_once(tmp_path_factory, "ranks_alone", lambda: losses(python("train_ranks.py")))


@pytest.mark.timeout(300)  # six processes import torch and its compiler, on whatever machine
def test_ranks_that_a_script_starts_learn_the_same(ranks_alone):
    served = headrace_run("train_ranks.py")
    assert losses(served) == ranks_alone
    assert re.search(r"^headrace: the loader at train_ranks.py:\d+:$", served.stderr, re.MULTILINE)
    assert re.search(r"^headrace: rank 1, the loader at train_ranks.py:\d+: .+", served.stderr, re.MULTILINE)


@pytest.mark.timeout(300)
def test_ranks_that_torchrun_starts_learn_the_same(ranks_alone):
    served = python(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"),
        *(sys.executable, "-m", "headrace.cli", "run", "train_ranks.py"),
    )
    assert losses(served) == ranks_alone
    assert "headrace: rank 1, the loader at train_ranks.py" in served.stderr


@pytest.mark.parametrize("mode", ["argv --lr 3 -m", "raise", "exit", "complain", "interrupt", "spawn"])
def test_a_script_behaves_as_under_python(mode):
    plain, served = python("behave.py", *mode.split()), headrace_run("behave.py", *mode.split())
    assert (plain.returncode, plain.stdout, plain.stderr) == (served.returncode, served.stdout, served.stderr)


def test_a_module_behaves_as_under_python():
    plain, served = python("-m", "behave", "raise"), headrace_run("-m", "behave", "raise")
    assert (plain.returncode, plain.stdout, plain.stderr) == (served.returncode, served.stdout, served.stderr)


def test_the_customisation_of_a_site_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('customised')")
    served = headrace_run("behave.py", "argv", PYTHONPATH=str(tmp_path))
    assert served.stdout.splitlines().count("customised") == 2  # in our own process, and in the script's


def test_a_process_without_a_loader_has_nothing_to_report(tmp_path):
    (tmp_path / "idle.py").write_text("import torch")
    assert headrace_run(str(tmp_path / "idle.py")).stderr.startswith("headrace: nothing to report")


@pytest.mark.parametrize("script", ["import torch", "import headrace", "raise SystemExit(3)"])
@pytest.mark.parametrize("options", [[], ["--no-report"]])
def test_a_timeline_that_is_not_written_is_told(tmp_path, script, options):
    (tmp_path / "idle.py").write_text(script)
    path = tmp_path / "loading.html"
    done = headrace_run("--timeline", str(path), *options, str(tmp_path / "idle.py"))
    assert done.returncode == (3 if "SystemExit" in script else 0)
    [line] = done.stderr.splitlines()
    assert line.startswith("headrace: ")
    assert f"no timeline written to {path}, for this process " in line
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.py"], "there is no such file: nowhere.py."),
        (["my.module"], "there is no such file: my.module. To run a module, write: headrace run -m my.module"),
        (["--timeline", "nowhere/loading.html", str(SCRIPTS / "behave.py")], "needs a folder that exists"),
    ],
)
def test_wrong_input_is_told_in_one_line(arguments, complaint):
    result = CliRunner().invoke(app, ["run", *arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.splitlines()) == 1
