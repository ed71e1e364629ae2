"""`headrace inspect` shows what `headrace.inspect` finds."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from headrace.cli.app import app


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("name,age\nAda,36\nMary [the first],19\n")
    return str(path)


def test_columns_files_and_samples_are_shown(table):
    result = CliRunner().invoke(app, ["inspect", table])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("csv: 1 file, ")
    assert "Mary [the first]" in result.stdout
    assert "│ age " in result.stdout


def test_json_has_all_of_it(table):
    result = CliRunner().invoke(app, ["inspect", table, "--json", "--samples", "1"])
    found = json.loads(result.stdout)
    assert (found["format"], found["n_rows"], len(found["samples"])) == ("csv", 2, 1)


def test_many_files_are_not_all_listed(tmp_path):
    for i in range(12):
        (tmp_path / f"{i:02}.txt").write_text("a\nb\n")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert "12 files" in result.stdout
    assert "… and 2 more" in result.stdout


def test_wrong_input_is_told_in_one_line(tmp_path):
    for arguments in ([str(tmp_path / "nowhere.csv")], [str(tmp_path), "--format", "floppy"]):
        result = CliRunner().invoke(app, ["inspect", *arguments])
        assert result.exit_code == 2
        assert result.stderr.startswith("headrace: ")
        assert len(result.stderr.splitlines()) == 1
