"""What is kept of served loaders, and told at the end."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from headrace import DataLoader
from headrace.cli import session as session_module
from headrace.cli.session import Session, Settings
from headrace.torch_patch import ScriptLine, Served


class TorchLoader:
    """Stands for one of torch's: something that can be gone."""


def served_at(line: int, batches: int = 2) -> Served:
    loader: DataLoader[Any] = DataLoader(range(batches), output="numpy", shard=(0, 1))
    assert len(list(loader)) == batches
    return Served(loader, ScriptLine("/somewhere/train.py", line), ())


@pytest.fixture
def make_session(monkeypatch):
    monkeypatch.setattr(session_module, "Finalize", lambda *args, **kwargs: None)

    def make(*, report: bool = True, timeline: Path | None = None) -> Session:
        return Session(Settings(os.getpid(), report, None if timeline is None else str(timeline)))

    return make


def test_settings_reach_other_processes(monkeypatch):
    settings = Settings(7, True, "/there/loading.html")
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.of_environment() == settings


def test_loaders_that_are_gone_are_told_with_those_that_are_not(make_session, capsys):
    session = make_session()
    gone, here = TorchLoader(), TorchLoader()
    session.note(gone, served_at(3))
    session.note(here, served_at(5))
    del gone
    gc.collect()
    session.end()
    told = capsys.readouterr().err
    assert told.index("the loader at train.py:3:") < told.index("the loader at train.py:5:")
    assert told.count("2 batches of 1 epoch") == 2


def test_of_many_loaders_at_one_place_one_is_told(make_session, capsys):
    session = make_session()
    loaders = [TorchLoader() for _ in range(3)]
    for loader in loaders:
        session.note(loader, served_at(3))
    session.end()
    told = capsys.readouterr().err
    assert told.count("the loader at train.py:3") == 1
    assert "the longest of 3 like it" in told


def test_other_ranks_than_the_first_tell_what_matters_in_one_line(make_session, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    session = make_session()
    loader = TorchLoader()
    session.note(loader, served_at(3))
    session.end()
    assert capsys.readouterr().err.startswith("headrace: rank 1, the loader at train.py:3: ")


def test_timelines_have_a_file_for_each_place(make_session, tmp_path):
    session = make_session(report=False, timeline=tmp_path / "loading.html")
    loaders = [TorchLoader() for _ in range(3)]
    for loader, line in zip(loaders, (3, 5, 3), strict=True):
        session.note(loader, served_at(line))
    session.end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loading-2.html", "loading.html"]


def test_without_a_report_nothing_is_told(make_session, capsys):
    session = make_session(report=False)
    loader = TorchLoader()
    session.note(loader, served_at(3))
    session.end()
    assert capsys.readouterr().err == ""


def test_nothing_to_report_is_told_once_by_the_process_of_the_script(make_session, capsys, monkeypatch):
    make_session().end()
    assert capsys.readouterr().err.startswith("headrace: nothing to report")
    session = make_session()
    monkeypatch.setattr(session, "_settings", Settings(os.getpid() + 1, True, None))
    session.end()
    assert capsys.readouterr().err == ""


def test_a_forked_process_starts_with_nothing(make_session, capsys, monkeypatch):
    session = make_session()
    inherited, own = TorchLoader(), TorchLoader()
    session.note(inherited, served_at(3))
    pid = os.getpid()
    monkeypatch.setattr(session_module.os, "getpid", lambda: pid + 1)
    del inherited
    gc.collect()
    session.note(own, served_at(5))
    session.end()
    told = capsys.readouterr().err
    assert "train.py:5" in told
    assert "train.py:3" not in told
