"""Every format of another library, in a loader: each row once and in order, with any workers and ranks, and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import DataLoader, inspect, mix, read_array_record, read_hub, read_litdata, read_mds, read_tfrecord
from headrace.base.optional import is_installed
from tests.sources.shard_files import example, tfrecord, write_litdata, write_mds

SIZES = (23, 0, 9, 30)


def parts():
    numbers = iter(range(sum(SIZES)))
    return [[(next(numbers), f"word {i}") for i in range(size)] for size in SIZES]


def mds(folder: Path) -> Any:
    write_mds(folder, parts())
    return read_mds(folder, block_bytes=150)


def litdata(folder: Path) -> Any:
    write_litdata(folder, parts())
    return read_litdata(folder, block_bytes=150)


def tf_records(folder: Path) -> Any:
    for number, rows in enumerate(parts()):
        records = [example({"id": [i], "word": [word.encode()]}) for i, word in rows]
        (folder / f"{number}.tfrecord").write_bytes(tfrecord(records))
    return read_tfrecord(folder, features={"id": int, "word": str}, block_bytes=300)


def saved(folder: Path) -> Any:
    """What `save_to_disk` writes: Arrow streams, and a list of them."""
    import pyarrow as pa

    files = []
    for number, rows in enumerate(parts()):
        batches = pa.table({"id": [i for i, _ in rows], "word": [w for _, w in rows]}).to_batches(max_chunksize=6)
        schema = pa.schema({"id": pa.int64(), "word": pa.string()})
        with pa.OSFile(str(folder / f"data-{number}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch.cast(schema))
        files.append({"filename": f"data-{number}.arrow"})
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    return read_hub(folder, block_bytes=200)


def array_records(folder: Path) -> Any:
    from array_record.python.array_record_module import ArrayRecordWriter

    for number, rows in enumerate(parts()):
        writer = ArrayRecordWriter(str(folder / f"{number}.array_record"), "group_size:1")
        for i, word in rows:
            writer.write(json.dumps({"id": i, "word": word}).encode())
        writer.close()
    return read_array_record(folder, block_bytes=1 << 14)


def need(module):
    return pytest.mark.skipif(not is_installed(module), reason=f"needs {module}")


FORMATS = [
    mds,
    litdata,
    tf_records,
    pytest.param(saved, marks=need("pyarrow")),
    pytest.param(array_records, marks=need("array_record")),
]
ROWS = [{"id": i, "word": word} for part in parts() for i, word in part]


def collate(batch):
    return [json.loads(row) if isinstance(row, bytes) else row for row in batch]


def loader_of(stream, workers=0, engine="processes", **options):
    return DataLoader(
        stream, batch_size=5, collate_fn=collate, num_workers=workers, engine=engine, output="numpy", **options
    )


def rows_of(loader):
    with loader:
        return [row for batch in loader for row in batch]


@pytest.mark.parametrize("make", FORMATS)
def test_each_row_comes_once_with_any_workers_and_ranks(tmp_path, make):
    stream = make(tmp_path)
    assert stream.count() == len(ROWS)
    assert len(stream.recipe.source.blocks()) > 3
    for workers, engine in ((0, "processes"), (2, "threads"), (2, "processes")):
        assert rows_of(loader_of(stream, workers, engine)) == ROWS
    shuffled = rows_of(loader_of(stream.shuffle(), 2, "threads", seed=1))
    assert shuffled == rows_of(loader_of(stream.shuffle(), 0, seed=1)) != ROWS
    assert sorted(shuffled, key=lambda row: row["id"]) == ROWS
    ranks = [rows_of(loader_of(stream.shuffle(), seed=1, shard=(rank, 2))) for rank in range(2)]
    assert {row["id"] for rank in ranks for row in rank} == set(range(len(ROWS)))


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["plain", "shuffled", "mixed"])
def test_a_state_resumes_at_any_batch(tmp_path, make, workers, kind):
    stream = make(tmp_path)
    if kind == "shuffled":
        stream = stream.shuffle(blocks=2)
    if kind == "mixed":
        stream = mix([stream, make(tmp_path).shuffle()], [2, 1], stop="all")
    with loader_of(stream, seed=3) as loader:
        seen = [(batch, json.dumps(loader.state_dict())) for batch in loader]
    for at in (0, len(seen) // 2, len(seen) - 2):
        with loader_of(stream, workers, "threads", seed=3) as loader:
            loader.load_state_dict(json.loads(seen[at][1]))
            assert list(loader) == [batch for batch, _ in seen[at + 1 :]]


@pytest.mark.parametrize("make", FORMATS)
def test_inspect_tells_of_it(tmp_path, make):
    found = inspect(make(tmp_path))
    assert found.n_rows == len(ROWS)
    assert found.samples[0] == ROWS[0] or make is array_records
    assert len(found.files) in (3, 4)  # without those that have no rows


def test_bad_records_are_counted_and_named(tmp_path):
    path = tmp_path / "x.tfrecord"
    records = [example({"id": [i]} if i != 4 else {"id": [1, 2]}) for i in range(9)]
    path.write_bytes(tfrecord(records))
    stream = read_tfrecord(path, features={"id": int})
    with (
        pytest.warns(UserWarning, match="record at byte 124"),
        loader_of(stream, on_error="skip", quarantine=tmp_path / "bad") as loader,
    ):
        assert [row["id"] for batch in loader for row in batch] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert "record at byte" in (tmp_path / "bad").read_text()
