"""The demonstration: what is killed and resumed learns the same as what is not."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("typer")
pytest.importorskip("torch")

from typer.testing import CliRunner

from headrace.cli import torch_demo
from headrace.cli.app import app
from headrace.cli.torch_demo import TEXT


def test_the_text_is_there():
    books = sorted(TEXT.glob("book-*.txt"))
    assert len(books) == 12
    assert books[0].read_text("ascii").startswith("Of Man's first disobedience")


@pytest.fixture
def a_tiny_model(monkeypatch):
    monkeypatch.setattr(torch_demo, "POSITIONS", 4)
    monkeypatch.setattr(torch_demo, "_WIDTH", 8)


def test_a_killed_and_resumed_training_has_the_same_losses(a_tiny_model, tmp_path):
    folder = tmp_path / "new" / "folder"
    # Workers read many steps ahead, and it takes as long until one is missed.
    result = CliRunner().invoke(app, ["demo", "--steps", "800", "--output", str(folder)])
    assert result.exit_code == 0, result.stderr
    told = " ".join(result.stdout.split())
    assert "killed by signal SIGKILL" in told
    assert "All 800 losses are equal" in told
    pictures = {"loss.png", "timeline.png"} if importlib.util.find_spec("matplotlib") is not None else set()
    assert {path.name for path in folder.iterdir()} == {"checkpoint.pt", "report.txt", "timeline.html"} | pictures
    assert "1 worker" in (folder / "report.txt").read_text()


def test_losses_that_differ_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_demo, "_run", lambda folder, steps: ([2.0, 1.0], [2.0, 1.5]))
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert "differs" in result.stdout
    assert "the losses differ" in result.stderr


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "file" / "folder")])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
