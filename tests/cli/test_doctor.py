"""The doctor tells what is wrong and what to do, and its exit code tells whether something is broken."""

from __future__ import annotations

import json
import resource

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from headrace.cli import doctor
from headrace.cli.app import app
from headrace.cli.doctor import Finding, Level
from headrace.tuning.machine import Machine

ROOMY = Machine(affinity=8, cpu_limit=None, memory_limit=None, memory_free=10**11)
TIGHT = Machine(affinity=8, cpu_limit=2.0, memory_limit=10**9, memory_free=5 * 10**8)


def levels(findings):
    return [finding.level for finding in findings]


def test_everything_is_looked_at_here():
    result = CliRunner().invoke(app, ["doctor", "--json"])
    findings = json.loads(result.stdout)
    areas = {finding["area"] for finding in findings}
    assert areas >= {"Python", "Cores", "Threads", "Memory", "Shared memory", "Descriptors", "Workers", "Clock"}
    assert {"Start method", "Libraries"} <= areas
    assert all(finding["fix"] for finding in findings if finding["level"] != "fine")
    assert result.exit_code == (1 if any(finding["level"] == "broken" for finding in findings) else 0)


@pytest.mark.parametrize(("level", "code"), [(Level.FINE, 0), (Level.WARNING, 0), (Level.BROKEN, 1)])
def test_the_exit_code_tells_what_is_broken(level, code, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda: iter([Finding("Clock", "is [odd]", level, "Set it.")]))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code
    assert "is [odd]" in result.stdout
    assert "Set it." in result.stdout


def test_a_container_that_gets_less_than_its_cores():
    assert levels(doctor.check_cores(ROOMY)) == [Level.FINE]
    (finding,) = doctor.check_cores(TIGHT)
    assert finding.level is Level.WARNING
    assert "at most 2 workers" in finding.fix


@pytest.mark.parametrize(
    ("machine", "environment", "expected"),
    [
        (ROOMY, {}, [Level.FINE, Level.FINE]),
        (TIGHT, {}, [Level.WARNING, Level.WARNING]),
        (TIGHT, {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "8"}, [Level.FINE, Level.WARNING]),
    ],
)
def test_more_threads_than_cores(machine, environment, expected):
    assert levels(doctor.check_threads(machine, environment)) == expected


def test_little_memory():
    assert levels(doctor.check_memory(ROOMY)) == [Level.FINE]
    assert levels(doctor.check_memory(TIGHT)) == [Level.WARNING]


@pytest.mark.parametrize(("soft", "level"), [(64, Level.BROKEN), (1024, Level.NOTE), (65536, Level.FINE)])
def test_few_descriptors(soft, level, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, 65536))
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    assert levels(doctor.check_descriptors()) == [level]


def test_shared_memory_that_is_missing_or_cannot_be_made(tmp_path, monkeypatch):
    assert levels(doctor.check_shared_memory(tmp_path / "nowhere")) == [Level.FINE, Level.NOTE]

    def refuse():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(doctor, "create_file", refuse)
    assert levels(doctor.check_shared_memory(tmp_path / "nowhere"))[0] is Level.BROKEN


def test_workers_that_do_not_work(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("no processes left")

    monkeypatch.setattr(doctor, "DataLoader", refuse)
    (finding,) = doctor.check_workers()
    assert finding.level is Level.BROKEN
    assert "no processes left" in finding.what


def test_libraries_that_are_old_or_not_there(monkeypatch):
    versions = {"numpy": "2.1.0", "torch": "2.3.1+cpu", "pyarrow": "15.0.0rc1"}
    monkeypatch.setattr(doctor, "version_of", versions.get)
    found = {finding.what.split()[0]: finding for finding in doctor.check_libraries()}
    assert found["numpy"].level is Level.FINE
    assert found["torch"].level is Level.WARNING
    assert found["torch"].fix == "pip install 'torch>=2.4'"
    assert found["pyarrow"].level is Level.FINE
    assert found["ray"] == Finding("Libraries", "ray is not installed")


def test_what_does_not_survive_a_fork_is_named_where_workers_fork(monkeypatch):
    monkeypatch.setattr(doctor, "version_of", {"polars": "1.0"}.get)
    monkeypatch.setattr(doctor, "_foreign_threads", lambda: 3)
    monkeypatch.setattr(doctor.multiprocessing, "get_start_method", lambda allow_none: "fork")
    told = [finding.what for finding in doctor.check_start_method()]
    assert told == [
        "worker processes start by fork",
        "polars is installed",
        "3 threads of libraries run already in this process",
    ]
    monkeypatch.setattr(doctor.multiprocessing, "get_start_method", lambda allow_none: "spawn")
    assert len(list(doctor.check_start_method())) == 1
