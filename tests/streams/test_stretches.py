"""Files that cannot be split are dealt out over workers, a stretch at a time: the same rows, whoever reads them."""

from __future__ import annotations

import gzip
import json
import random
from itertools import islice

import pytest

import headrace
from headrace import DataLoader, FileOptions, read_jsonl, read_text
from headrace.streams import plan
from tests.resuming import former

ENGINES = [
    pytest.param({}, id="inline"),
    pytest.param({"num_workers": 2}, id="processes"),
    pytest.param({"num_workers": 2, "engine": "threads"}, id="threads"),
]


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """A file of many stretches, and one of a few."""
    monkeypatch.setattr(plan, "_DEALT_BYTES", 100)
    rng = random.Random(0)
    files = []
    for name, n in (("a", 4000), ("b", 300)):
        lines = [json.dumps({"file": name, "row": i, "text": "x" * rng.randrange(60)}) for i in range(n)]
        path = tmp_path / f"{name}.jsonl.gz"
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
        files.append(path)
    return files


def numbered(row):
    return row["file"], row["row"], int(headrace.rng().integers(1000))


def loader_of(paths, **options):
    stream = read_jsonl(paths, files=FileOptions(stretch_bytes=10_000)).map(numbered).filter(lambda row: row[2] > 100)
    return DataLoader(stream, 7, seed=3, collate_fn=list, **options)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_comes_once_with_the_same_random_numbers(paths, engine):
    expected = list(loader_of(paths))
    with loader_of(paths, **engine) as loader:
        audit = loader.audit()
        assert list(loader) == expected
        audit.check()
        assert audit.proven == [0]
        workers = loader.stats()["workers"]
    assert len(workers) == max(1, engine.get("num_workers", 0))
    assert all(worker["samples"] for worker in workers)  # all of them read


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("at", [1, 2, 50, 300, 500, 530])
def test_an_epoch_resumes_in_any_stretch(paths, engine, at):
    expected = list(loader_of(paths))
    with loader_of(paths, **engine) as loader:
        assert list(islice(loader, at)) == expected[:at]
        state = json.loads(json.dumps(loader.state_dict()))
    for workers in (0, 2):
        with loader_of(paths, num_workers=workers) as resumed:
            resumed.load_state_dict(state)
            assert list(resumed) == expected[at:]
    state["course"].pop("stretch", None)  # of a state that was saved before there were stretches, or digests
    state = former(state)
    with loader_of(paths) as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == expected[at:]


def test_ranks_draw_what_one_alone_draws(paths):
    expected = {row for batch in loader_of(paths) for row in batch}
    of_ranks = [
        [row for batch in loader_of(paths, shard=(rank, 2), even="allow") for row in batch] for rank in range(2)
    ]
    assert sum(map(len, of_ranks)) == len(expected)
    assert {row for rows in of_ranks for row in rows} == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_lines_that_nothing_is_done_to(paths, engine):
    with DataLoader(read_text(paths, files=FileOptions(stretch_bytes=10_000)), 7, **engine) as loader:
        lines = [line for batch in loader for line in batch]
    assert [json.loads(line)["row"] for line in lines] == [*range(4000), *range(300)]


def test_a_worker_that_is_replaced(paths, tmp_path):
    def deadly(row):
        if row["row"] == 2500:
            try:
                (tmp_path / "died").touch(exist_ok=False)
            except FileExistsError:
                return row["row"]
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        return row["row"]

    stream = read_jsonl(paths[:1], files=FileOptions(stretch_bytes=10_000)).map(deadly)
    options = {"num_workers": 2, "on_worker_death": "restart", "collate_fn": list}
    with DataLoader(stream, 7, **options) as loader, pytest.warns(UserWarning, match="was replaced|killed"):
        assert [row for batch in loader for row in batch] == list(range(4000))


@pytest.mark.filterwarnings("ignore:on_error='skip'")
@pytest.mark.parametrize("engine", ENGINES)
def test_bad_rows_are_left_out(paths, engine):
    def choosy(row):
        if row["row"] % 500 == 7:
            raise ValueError(f"row {row['row']}")
        return row["row"]

    stream = read_jsonl(paths[:1], files=FileOptions(stretch_bytes=10_000)).map(choosy)
    with DataLoader(stream, 7, collate_fn=list, on_error="skip", **engine) as loader:
        assert [row for batch in loader for row in batch] == [i for i in range(4000) if i % 500 != 7]
        assert [error.error for error in loader.errors] == [f"ValueError: row {i}" for i in range(7, 4000, 500)]
