"""`headrace inspect` shows what `headrace.inspect` finds."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.cli.output import out


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


def test_the_encoding_can_be_given(tmp_path):
    (tmp_path / "a.csv").write_text("name\nZoë\n", encoding="utf-16")
    refused = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert refused.exit_code == 2
    assert "--encoding utf-16" in refused.stderr
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path), "--encoding", "utf-16"])
    assert shown.exit_code == 0, shown.stderr
    assert "Zoë" in shown.stdout


def test_many_files_are_not_all_listed(tmp_path):
    for i in range(12):
        (tmp_path / f"{i:02}.txt").write_text("a\nb\n")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert "12 files" in result.stdout
    assert "… and 2 more" in result.stdout


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_data_of_which_no_record_can_be_read_is_an_error(tmp_path, options):
    (tmp_path / "a.jsonl").write_text("oops\n{no\n")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path), *options])
    assert result.exit_code == 1
    assert result.stdout
    assert result.stderr.startswith("headrace: no record can be read as jsonl. ")


def test_one_record_that_can_be_read_is_enough_and_so_is_nothing_at_all(tmp_path):
    for content in ("oops\n{}\n", ""):
        (tmp_path / "a.jsonl").write_text(content)
        assert CliRunner().invoke(app, ["inspect", str(tmp_path)]).exit_code == 0


def test_what_a_terminal_would_obey_is_escaped(tmp_path, monkeypatch):
    monkeypatch.setattr(out, "width", 500)  # else a long path is broken into lines
    (tmp_path / "a\x1b[2J.csv").write_text('na\x1b[31mme,b\x9b,"two\nlines"\n1,2,3\n')
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path)]).stdout
    assert all(letter.isprintable() for letter in shown.replace("\n", ""))
    for name in (r"na\x1b[31mme", r"b\x9b", r"two\nlines", r"a\x1b[2J.csv"):
        assert name in shown


@pytest.mark.parametrize("name", ["people.csv", "people.db"])
def test_a_query_of_what_is_no_database_is_refused(tmp_path, name):
    (tmp_path / name).write_text("name,age\nAda,36\n")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / name), "--query", "SELECT 1"])
    assert result.exit_code == 2
    assert "is csv" in result.stderr or "not a database" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_wrong_input_is_told_in_one_line(tmp_path):
    for arguments in ([str(tmp_path / "nowhere.csv")], [str(tmp_path), "--format", "floppy"]):
        result = CliRunner().invoke(app, ["inspect", *arguments])
        assert result.exit_code == 2
        assert result.stderr.startswith("headrace: ")
        assert len(result.stderr.splitlines()) == 1
