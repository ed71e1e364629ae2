"""Bad records go to a file: each once, with its place and its content, also with workers, epochs and resumes."""

from __future__ import annotations

import json
import os
import signal

import pytest

from headrace import DataLoader, get_worker_info, read_jsonl
from headrace.base.messages import BadSample
from headrace.deliver.quarantine import Quarantine
from headrace.testing import FlakyDataset
from tests.streams.memory import in_memory

pytestmark = pytest.mark.filterwarnings("ignore:on_error='skip'", "ignore:.*was killed", "ignore:.*died")


@pytest.fixture
def bad_lines(tmp_path):
    """Twenty lines, of which every fourth is no JSON."""
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"a": {i}}}\n' if i % 4 else f"{{bad {i}\n" for i in range(20)))
    return read_jsonl(path, block_bytes=30)


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def loading(stream, path, **options):
    return DataLoader(stream, 2, on_error="skip", quarantine=path, collate_fn=list, **options)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "engine": "threads"}, {"num_workers": 2}])
def test_records_are_written_once(bad_lines, tmp_path, options):
    path = tmp_path / "bad.jsonl"
    with loading(bad_lines.shuffle(blocks=2), path, **options) as loader:
        for _ in range(2):
            assert sum(map(len, loader)) == 15
    found = records(path)
    assert sorted(record["raw"].strip() for record in found) == sorted(f"{{bad {i}" for i in range(0, 20, 4))
    assert all("lines.jsonl" in record["where"] and "line" in record["where"] for record in found)
    assert all("JSON" in record["error"] for record in found)
    assert len(loader.errors) == 10


def test_a_resume_writes_what_was_not_written(bad_lines, tmp_path):
    path = tmp_path / "bad.jsonl"
    first = loading(bad_lines, path)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    n_before = len(records(path))
    state = first.state_dict()
    assert state["errors"] == n_before == len(first.errors)
    resumed = loading(bad_lines, path)
    resumed.load_state_dict(state)
    list(resumed)
    assert 0 < n_before < len(records(path)) == 5
    assert len(resumed.errors) == 5 - n_before


def die_once(path):
    """A function that kills the first worker that comes to row 30."""

    def step(row):
        if row == 30 and get_worker_info() is not None and not path.exists():
            path.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        if row % 10 == 0:
            raise ValueError(f"{row} is bad")
        return row

    return step


def test_a_worker_that_is_replaced_writes_nothing_twice(tmp_path):
    path = tmp_path / "bad.jsonl"
    stream = in_memory(60, 7).map(die_once(tmp_path / "died"))
    with loading(stream, path, num_workers=2, on_worker_death="restart") as loader:
        rows = [row for batch in loader for row in batch]
    assert rows == [row for row in range(60) if row % 10]
    assert [record["raw"] for record in records(path)] == ["0", "10", "20", "30", "40", "50"]
    assert len(loader.errors) == 6
    assert (tmp_path / "died").exists()


def test_rows_say_where_they_come_from(tmp_path):
    def refuse_9(row):
        if row == 9:
            raise ValueError("9 is refused")
        return row

    path = tmp_path / "bad.jsonl"
    loader = loading(in_memory(20, 4).shuffle(blocks=5).map(str).map(int).map(refuse_9), path)
    list(loader)
    [record] = records(path)
    assert record["where"] == "Map at row 1 of memory"
    assert (record["raw"], record["error"]) == ("9", "ValueError: 9 is refused")
    assert str(loader.errors[0].key) == record["where"]


def test_samples_by_key_go_there_too(tmp_path):
    path = tmp_path / "bad.jsonl"
    list(loading(FlakyDataset(range(6), bad=[1, 4]), path))
    assert [(record["where"], record["error"]) for record in records(path)] == [
        ("1", "ValueError: sample 1 is bad"),
        ("4", "ValueError: sample 4 is bad"),
    ]


def test_records_are_cut_and_broken_lines_passed_over(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"where": "1", "error": "E", "raw": ""}\n{"whe\n')
    quarantine = Quarantine(path)
    quarantine.note([BadSample(1, 0, None, "E", ""), BadSample("x" * 10_000, 0, None, "E", "")])
    assert len(path.read_text().splitlines()) == 3
    assert len(json.loads(path.read_text().splitlines()[-1])["where"]) == 4096


def test_nothing_is_written_if_nothing_is_bad(tmp_path):
    list(loading(in_memory(6, 2), tmp_path / "bad.jsonl"))
    assert not (tmp_path / "bad.jsonl").exists()


def test_it_is_for_what_is_skipped(tmp_path):
    with pytest.raises(ValueError, match="on_error='skip'"):
        DataLoader(in_memory(6, 2), quarantine=tmp_path / "bad.jsonl")
