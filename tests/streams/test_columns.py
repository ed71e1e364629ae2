"""Batches of columns: the same whatever the cuts, and free to be written to."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace import DataLoader, read_csv, read_jsonl, read_parquet
from headrace.streams import windows
from tests.streams.tables import csv_columns

RAGGED = [{"a": 1}, {"a": 2, "b": 3}, {"a": 4, "b": 5}, {"b": 6}]


def test_columns_of_ragged_rows_do_not_depend_on_the_cuts(tmp_path):
    path = tmp_path / "ragged.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in RAGGED))
    whole, cut = (repr(list(DataLoader(read_jsonl(path, block_bytes=n).as_columns(), 4))) for n in (1000, 1))
    assert whole == cut
    assert "'a'" in whole
    assert "'b'" in whole


@pytest.mark.parametrize("shuffled", [False, True])
def test_arrays_may_be_written_to(tmp_path, shuffled):
    stream = csv_columns(tmp_path, [["a", "b", "c", "d", "e"]], 10_000).stream
    loader = DataLoader(stream.shuffle(blocks=1) if shuffled else stream, batch_size=2, output="numpy")
    for epoch in range(2):
        seen = []
        for batch in loader:
            seen += batch["id"].tolist()
            batch["id"] += 100
        assert sorted(seen) == list(range(5)), f"of epoch {epoch}"


def test_numbers_are_arrays_and_texts_are_lists(tmp_path):
    batch = next(iter(DataLoader(csv_columns(tmp_path, [["a", "b", "c"]], 1).stream, batch_size=3, output="numpy")))
    assert isinstance(batch["id"], np.ndarray)
    assert batch["id"].tolist() == [0, 1, 2]
    assert batch["word"] == ["a", "b", "c"]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_long_bytes_from_workers(tmp_path, output, shuffled):
    pa, pq, _ = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet", output))
    rows = [bytes([i % 256]) * (300 + 7 * i) for i in range(300)]
    for number in range(3):
        table = pa.table({"id": np.arange(number, 300, 3), "data": rows[number::3]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=31)
    stream = read_parquet(tmp_path / "*.parquet", rows="columns", block_bytes=20_000)
    stream = stream.shuffle() if shuffled else stream

    def batches(workers, **options):
        loader = DataLoader(stream, batch_size=17, seed=3, output=output, num_workers=workers, **options)
        return [(list(batch["id"]), batch["data"]) for batch in loader]

    expected = batches(0)
    assert [len(data) for _, data in expected] == [17] * 17 + [11]
    assert all(rows[i] == row for ids, data in expected for i, row in zip(ids, data, strict=True))
    assert batches(1) == batches(2) == expected
    assert batches(2, collate_fn=dict) == expected


def test_functions_of_columns(tmp_path):
    sizes = []

    def doubled(columns):
        sizes.append(len(columns["id"]))
        return {"twice": columns["id"] * 2}

    stream = csv_columns(tmp_path, [list("abcde")], 10_000).stream.map_batches(doubled, 2)
    batches = list(DataLoader(stream, batch_size=5, output="numpy"))
    assert [batch["twice"].tolist() for batch in batches] == [[0, 2, 4, 6, 8]]
    assert sizes == [2, 2, 1]


def test_columns_of_different_lengths_are_refused(tmp_path):
    stream = csv_columns(tmp_path, [list("ab")], 10_000).stream.map_batches(lambda columns: {"a": [1], "b": [1, 2]})
    with pytest.raises(ValueError, match="same length"):
        list(DataLoader(stream, batch_size=2))


def test_csv_takes_all_of_its_format(tmp_path):
    path = tmp_path / "table"
    path.write_text("1;'a;b'\n-;c\n")
    stream = read_csv(
        path, separator=";", header=False, names=["n", "s"], quote="'", nulls=["-"], newlines_in_values=False
    )
    assert list(stream) == [{"n": 1, "s": "a;b"}, {"n": None, "s": "c"}]


def test_arrays_of_a_file_become_those_of_the_output(tmp_path):
    """Without a warning of read-only memory, which would fail this test."""
    loader = DataLoader(csv_columns(tmp_path, [list("abcd")], 10_000).stream, batch_size=2)
    assert [np.asarray(batch["id"]).tolist() for batch in loader] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("workers", [0, 2])
def test_lists_of_numbers_may_be_written_to(tmp_path, workers):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    lists = [[i, i + 1] if i % 3 else [] for i in range(20)]
    pq.write_table(pa.table({"tokens": lists, "floats": [[0.5 * i] for i in range(20)]}), tmp_path / "lists.parquet")
    loader = DataLoader(read_parquet(tmp_path / "lists.parquet", rows="columns"), batch_size=6, num_workers=workers)
    seen = []
    for batch in loader:
        for tokens, floats in zip(batch["tokens"], batch["floats"], strict=True):
            seen.append(tokens.tolist())
            tokens += 100
            floats += 1
    assert seen == lists


@pytest.mark.parametrize("shuffled", [False, True])
def test_functions_may_write_to_columns(tmp_path, shuffled):
    def double(columns):
        columns["id"] *= 2
        return columns

    stream = csv_columns(tmp_path, [["a", "b", "c", "d", "e"]], 10_000).stream
    stream = (stream.shuffle(blocks=1) if shuffled else stream).map_batches(double, 2)
    loader = DataLoader(stream, batch_size=2, output="numpy")
    for _ in range(2):
        assert sorted(n for batch in loader for n in batch["id"].tolist()) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_shuffled_tables_of_all_types(tmp_path, workers, whole, monkeypatch):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    monkeypatch.setattr(windows, "_MOST_GIVEN_WHOLE", 1 << 20 if whole else 0)
    n = 60
    columns = {
        "id": pa.array(range(n)),
        "maybe": pa.array([None if i % 5 == 0 else i for i in range(n)]),
        "text": pa.array([f"text {i}" for i in range(n)]),
        "long": pa.array([bytes([i]) * 700 for i in range(n)], pa.large_binary()),
        "essay": pa.array([f"\N{SNOWMAN} {i} " * 400 for i in range(n)]),
        "seldom long": pa.array(["x" * (5000 if i == 3 else i) for i in range(n)]),
        "gone": pa.array([None if i == 30 else bytes(600 + i) for i in range(n)]),
        "kind": pa.array([f"kind {i % 3}" for i in range(n)]).dictionary_encode(),
        "tokens": pa.array([[i] * (i % 4) for i in range(n)]),
        "pair": pa.array([[i, i + 1] for i in range(n)], pa.list_(pa.int32(), 2)),
        "both": pa.array([{"a": i, "b": str(i)} for i in range(n)]),
    }
    for number in range(3):
        pq.write_table(pa.table(columns).slice(20 * number, 20), tmp_path / f"{number}.parquet", row_group_size=7)
    stream = read_parquet(tmp_path / "*.parquet", rows="columns", block_bytes=4000)
    as_rows = {row["id"]: row for row in read_parquet(tmp_path / "*.parquet", rows="dicts")}
    seen = []
    for batch in DataLoader(stream.shuffle(), batch_size=7, seed=2, num_workers=workers, output="numpy"):
        for i, key in enumerate(batch["id"].tolist()):
            row = {name: column[i] for name, column in batch.items()}
            assert all(np.array_equal(row[name], as_rows[key][name]) for name in row), (row, as_rows[key])
            seen.append(key)
    assert sorted(seen) == list(range(n))
    assert seen != list(range(n))


def test_shuffled_long_values_go_on_at_any_batch_and_on_any_rank(tmp_path):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    table = pa.table({"id": range(90), "long": [f"{i} " * 300 for i in range(90)]})
    pq.write_table(table, tmp_path / "long.parquet", row_group_size=5)

    def make(workers, shard=None):
        stream = read_parquet(tmp_path / "long.parquet", rows="columns", block_bytes=4000).shuffle(blocks=4)
        return DataLoader(stream, batch_size=8, seed=1, num_workers=workers, output="numpy", shard=shard)

    def seen(loader):
        batches = [(batch["id"].tolist(), batch["long"]) for batch in loader]
        assert all(long == [f"{i} " * 300 for i in ids] for ids, long in batches)
        return [ids for ids, _ in batches]

    expected = seen(make(0))
    assert sorted(row for ids in expected for row in ids) == list(range(90))
    first = make(2)
    batches = iter(first)
    for at in range(5):
        next(batches)
        state = first.state_dict()
        for workers in (0, 2):
            resumed = make(workers)
            resumed.load_state_dict(state)
            assert seen(resumed) == expected[at + 1 :]
    for workers in (0, 2):
        of_ranks = [seen(make(workers, (rank, 2))) for rank in range(2)]
        assert sorted(row for batches in of_ranks for ids in batches for row in ids) == list(range(90))


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_times_stay_numpys(tmp_path, output):
    pa, pq, _ = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet", output))
    times = np.arange(5).astype("datetime64[us]")
    pq.write_table(pa.table({"id": range(5), "when": times}), tmp_path / "times.parquet")
    loader = DataLoader(read_parquet(tmp_path / "times.parquet", rows="columns"), batch_size=5, output=output)
    [batch] = loader
    assert (batch["when"] == times).all()
    assert type(batch["id"]).__module__.startswith(output)


@pytest.mark.parametrize("kind", ["list", "fixed"])
def test_functions_may_write_to_arrays_in_rows(tmp_path, kind):
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))

    def add_one(row):
        row["x"] += 1
        return row

    kind = pa.list_(pa.float32(), 2) if kind == "fixed" else pa.list_(pa.float32())
    pq.write_table(pa.table({"x": pa.array([[1.0, 2.0]] * 4, kind)}), tmp_path / "lists.parquet")
    loader = DataLoader(read_parquet(tmp_path / "lists.parquet").map(add_one), batch_size=4, output="numpy")
    assert next(iter(loader))["x"].tolist() == [[2.0, 3.0]] * 4
