"""Windows that cannot be read, bad rows, collations that raise: only what is bad is lost, and nothing hangs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time

import pytest

from headrace import (
    ChangedFileError,
    DataLoader,
    RecordError,
    Stream,
    TooManyBadSamplesError,
    mix,
    read_arrow,
    read_jsonl,
    read_parquet,
    read_text,
)
from tests.streams.memory import in_memory, outcomes

WORKERS = [0, 2]
skips = pytest.mark.filterwarnings("ignore:.*left out", "ignore:.*skip")


def refuse_4(rows):
    if 4 in rows:
        raise ValueError("4 is refused")
    return rows


@pytest.fixture
def bad_lines(tmp_path):
    """Twenty lines, of which every fourth is no JSON, about two in a window."""
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f'{{"a": {i}}}\n' if i % 4 else "{bad\n" for i in range(20)))
    return read_jsonl(path, block_bytes=20)


def skipping(stream, **options):
    return DataLoader(stream, batch_size=3, on_error="skip", collate_fn=list, engine="threads", **options)


@skips
@pytest.mark.parametrize("workers", WORKERS)
def test_a_window_that_fails_once_costs_at_most_its_own_rows(workers):
    with skipping(in_memory(20, 4, failures={1: 1}), num_workers=workers) as loader:
        batches = list(loader)
    rows = [row for batch in batches for row in batch]
    assert [len(batch) for batch in batches[:-1]] == [3] * (len(batches) - 1)
    assert rows == sorted(set(rows))
    assert {*range(4), *range(8, 20)} <= set(rows)


@skips
@pytest.mark.parametrize("workers", WORKERS)
def test_a_window_that_cannot_be_read_is_listed_once(workers):
    with skipping(in_memory(20, 4, failures={1: 9}), num_workers=workers) as loader:
        rows = [row for batch in loader for row in batch]
    assert rows == [*range(4), *range(8, 20)]
    assert len(loader.errors) == 1


@skips
@pytest.mark.parametrize("per_block", [4, 40], ids=["a batch of two windows", "a batch within a window"])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_collation_that_raises_costs_its_batch_only(workers, per_block):
    loader = DataLoader(
        in_memory(40, per_block), 3, on_error="skip", collate_fn=refuse_4, num_workers=workers, engine="threads"
    )
    with loader:
        rows = [row for batch in loader for row in batch]
    assert rows == [*range(3), *range(6, 40)]
    assert [error.error for error in loader.errors] == ["ValueError: 4 is refused"]


@pytest.mark.parametrize("workers", WORKERS)
def test_after_a_collation_that_raised_the_epoch_is_over(workers):
    loader = DataLoader(in_memory(40, 4), 3, collate_fn=refuse_4, num_workers=workers, engine="threads")
    assert outcomes(loader) == [[0, 1, 2], "ValueError"]


@skips
@pytest.mark.parametrize("workers", WORKERS)
def test_after_too_many_errors_the_epoch_is_over(bad_lines, workers):
    loader = DataLoader(bad_lines, 2, on_error="skip", max_errors=1, num_workers=workers, engine="threads")
    assert outcomes(loader)[-1] == TooManyBadSamplesError.__name__


@skips
def test_ranks_count_rows_without_bad_ones(bad_lines):
    shares = [list(DataLoader(bad_lines, 2, on_error="skip", shard=(rank, 2), collate_fn=list)) for rank in range(2)]
    rows = [row["a"] for share in shares for batch in share for row in batch]
    assert len(shares[0]) == len(shares[1]) > 0
    assert len(set(rows)) == len(rows)
    assert set(rows) <= {i for i in range(20) if i % 4}


@pytest.mark.parametrize(("engine", "workers"), [("threads", 0), ("threads", 2), ("processes", 2)])
def test_an_error_comes_after_all_batches_before_it(engine, workers):
    def refuse_30(row):
        if row == 30:
            raise ValueError("30 is refused")
        return row

    loader = DataLoader(in_memory(40, 4).map(refuse_30), 3, collate_fn=list, num_workers=workers, engine=engine)
    assert outcomes(loader) == [*(list(range(i, i + 3)) for i in range(0, 27, 3)), "ValueError"]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_the_file_and_the_row(tmp_path, workers):
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{i}\n" for i in range(40)))
    stream = read_text(path, block_bytes=22).shuffle(blocks=1).map(int).map(lambda n: 1 // (n - 30))
    with DataLoader(stream, 4, num_workers=workers) as loader, pytest.raises(ZeroDivisionError) as raised:
        list(loader)
    [note] = raised.value.__notes__
    offset = len("".join(f"{i}\n" for i in range(30)))
    found = re.fullmatch(rf"Map at row (\d+) of {re.escape(str(path))}, bytes (\d+) to (\d+)", note)
    assert found is not None
    row, start, stop = map(int, found.groups())
    assert start <= offset < stop
    lines = [i for i in range(40) if start <= len("".join(f"{j}\n" for j in range(i))) < stop]
    assert lines[row] == 30


def test_rows_that_cannot_be_sent_are_joined_where_they_are():
    """A generator cannot be pickled, but a batch of what it yields can."""
    stream = in_memory(40, 4).map(lambda row: (row for _ in range(2)))
    for workers in (1, 2):
        with DataLoader(stream, 3, collate_fn=lambda rows: [list(row) for row in rows], num_workers=workers) as loader:
            rows = [row for batch in loader for row in batch]
        assert rows == [[i, i] for i in range(40)]


@skips
def test_the_place_after_a_batch_that_was_left_out():
    def make():
        return DataLoader(in_memory(40, 40), 3, on_error="skip", collate_fn=refuse_4, seed=1)

    loader = make()
    seen = [(batch, loader.state_dict()) for batch in loader]
    for at, (_, state) in enumerate(seen):
        resumed = make()
        resumed.load_state_dict(state)
        if at + 1 < len(seen):
            assert list(resumed) == [batch for batch, _ in seen[at + 1 :]]


@skips
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_file_that_cannot_be_looked_into_is_left_out(tmp_path, suffix, workers):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    for number in range(3):
        path, table = tmp_path / f"{number}.{suffix}", pa.table({"id": range(5 * number, 5 * number + 5)})
        if suffix == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write(table)
    (tmp_path / f"1.{suffix}").write_bytes((tmp_path / f"1.{suffix}").read_bytes()[:-10])
    stream = (read_parquet if suffix == "parquet" else read_arrow)(tmp_path)
    with pytest.raises(RecordError, match=f"1.{suffix} is damaged"):
        list(DataLoader(stream))
    with DataLoader(stream, batch_size=4, on_error="skip", output="numpy", num_workers=workers) as loader:
        for epoch in range(2):
            assert [n for batch in loader for n in batch["id"].tolist()] == [*range(5), *range(10, 15)], epoch
        assert len(loader.errors) == 2
        assert f"1.{suffix}" in str(loader.errors[0])


def test_files_that_are_all_damaged_are_told(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(RecordError, match=r"x\.parquet is damaged"):
        list(DataLoader(read_parquet(tmp_path / "x.parquet"), on_error="skip"))


@pytest.fixture
def damaged_group(tmp_path):
    """A Parquet file of four row groups, of which the third is damaged, and one that is whole."""
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    for name, start in (("a", 0), ("b", 400)):
        table = pa.table({"id": range(start, start + 400)})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=100, use_dictionary=False)
    path = tmp_path / "a.parquet"
    place = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[place : place + 50] = b"\xff" * 50
    path.write_bytes(content)
    return tmp_path


@skips
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_only_the_blocks_of_a_damaged_row_group_are_left_out(damaged_group, shuffled, workers):
    stream = read_parquet(damaged_group, rows="columns", block_bytes=400)
    stream = stream.shuffle() if shuffled else stream
    with DataLoader(stream, batch_size=16, on_error="skip", seed=1, num_workers=workers, output="numpy") as loader:
        rows = [n for batch in loader for n in batch["id"].tolist()]
    assert sorted(rows) == [*range(200), *range(300, 800)]
    assert (rows == sorted(rows)) is not shuffled
    assert all("a.parquet, rows 2" in str(bad.key) for bad in loader.errors)


@pytest.mark.parametrize("workers", WORKERS)
def test_the_rows_before_a_damaged_row_group_come_first(damaged_group, workers):
    stream = read_parquet(damaged_group, rows="columns", block_bytes=400)
    with DataLoader(stream, batch_size=16, num_workers=workers, output="numpy") as loader:
        batches, rows = iter(loader), []
        with pytest.raises(RecordError, match=r"a\.parquet"):
            rows.extend(n for batch in batches for n in batch["id"].tolist())
    assert rows == list(range(192))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("length", [10, 1000])
def test_strings_that_are_none_are_told_with_their_file(tmp_path, workers, shuffled, length):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    values = pa.array([b"x" * length] * 5 + [b"\xff" * length] + [b"x" * length] * 4)
    pq.write_table(pa.table({"x": pa.Array.from_buffers(pa.string(), 10, values.buffers())}), tmp_path / "bad.parquet")
    stream = read_parquet(tmp_path / "bad.parquet", rows="columns")
    loader = DataLoader(stream.shuffle() if shuffled else stream, batch_size=2, num_workers=workers)
    with pytest.raises(RecordError, match="The column 'x' is damaged: Invalid UTF8") as caught:
        list(loader)
    told = "".join([*getattr(caught.value, "__notes__", []), str(caught.value.__cause__)])
    assert "bad.parquet" in told


def write_strings(path, name, *, bad=None):
    """A Parquet file of six strings, one of which may be none."""
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    values = pa.array([b"\xff\xfe" if i == bad else f"{name}{i}".encode() for i in range(6)])
    pq.write_table(pa.table({"x": pa.Array.from_buffers(pa.string(), 6, values.buffers())}), path / f"{name}.parquet")


@pytest.mark.parametrize("rows", ["dicts", "columns"])
@pytest.mark.parametrize("size", [2, 4, 5])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "engine": "threads"}])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_only_the_block_with_a_string_that_is_none_is_left_out(tmp_path, rows, size, options):
    for name, bad in (("a", None), ("b", 3), ("c", None)):
        write_strings(tmp_path, name, bad=bad)
    stream = read_parquet(tmp_path, rows=rows)
    bad_rows = tmp_path / "bad.jsonl"
    with DataLoader(stream, batch_size=size, on_error="skip", quarantine=bad_rows, **options) as loader:
        found = [x for batch in loader for x in batch["x"]]
    assert found == [f"{name}{i}" for name in "ac" for i in range(6)]
    [bad] = loader.errors
    assert "b.parquet" in str(bad.key)
    assert "The column 'x' is damaged" in bad.error
    assert "b.parquet" in json.loads(bad_rows.read_text())["where"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_batches_that_cannot_be_collated_are_written_down(tmp_path, workers):
    stream = Stream.from_blocks([0, 1], lambda n: [n] * 5)
    bad_rows = tmp_path / "bad.jsonl"
    options = {"collate_fn": refuse_ones, "on_error": "skip", "quarantine": bad_rows, "num_workers": workers}
    with DataLoader(stream, batch_size=2, **options) as loader:
        assert list(loader) == [[0, 0], [0, 0]]
    assert len(bad_rows.read_text().splitlines()) == len(loader.errors) == 3


def refuse_ones(rows):
    if 1 in rows:
        raise ValueError("a one")
    return rows


class LateWorker:
    """Lets worker 1 start late."""

    def __call__(self, number):
        if number == 1:
            time.sleep(0.3)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_know_the_files_that_were_listed_first(tmp_path, method):
    """One that starts late must not take a file that was replaced for the one that was listed."""
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"old{i:04}\n" for i in range(36)))
    loader = DataLoader(
        read_text(path, block_bytes=96),
        batch_size=6,
        num_workers=2,
        worker_init_fn=LateWorker(),
        multiprocessing_context=method,
    )
    with loader:
        batches = iter(loader)
        found = list(next(batches))
        other = tmp_path / "other.txt"
        other.write_text("".join(f"new{i:04}\n" for i in range(36)))
        os.replace(other, path)
        with contextlib.suppress(ChangedFileError):
            for batch in batches:
                found += batch
    assert all(line.startswith("old") for line in found)


def no_rows(row):
    return False


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
@pytest.mark.parametrize("kind", ["filtered", "told", "mixed"])
def test_what_has_no_rows_is_not_repeated_for_ever(options, kind):
    if kind == "told":
        stream = Stream.from_blocks([0, 1], lambda n: [], counts=[0, 0]).repeat()
    else:
        stream = Stream.from_blocks([0, 1], lambda n: [n]).filter(no_rows).repeat()
    if kind == "mixed":
        stream = mix([stream, Stream.from_blocks([0], lambda n: [1, 2])], [1, 1], stop="all")
    loader = DataLoader(stream, batch_size=2, **options)
    assert [batch.tolist() for batch in loader] == ([[1, 2]] if kind == "mixed" else [])
    assert list(stream) == ([1, 2] if kind == "mixed" else [])
