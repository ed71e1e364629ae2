"""MDS and LitData: what the libraries wrote, read as they read it; damage is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ChangedFileError, RecordError
from headrace.base.optional import is_installed
from headrace.sources.litdata import LitDataSource
from headrace.sources.mds import MdsSource
from headrace.sources.options import FileOptions
from tests.sources.exactly_once import all_rows, check_exactly_once, check_other_processes, rows_of
from tests.sources.library_rows import N, plain, rows_of_library
from tests.sources.shard_files import example, offset_file, sized_record, tfrecord, write_litdata, write_mds

KINDS = {"mds": (MdsSource, write_mds), "litdata": (LitDataSource, write_litdata)}
words = st.text(alphabet="ab é€\n", max_size=8)


def numbered(sizes, word="word"):
    numbers = iter(range(sum(sizes)))
    return [[(next(numbers), f"{word} {i}") for i in range(size)] for size in sizes]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(
    shards=st.lists(st.lists(words, max_size=9), min_size=1, max_size=3), block=st.sampled_from([1, 30, 100, 10_000])
)
def test_samples_come_once_whatever_the_blocks(tmp_path_factory, kind, shards, block):
    make, write = KINDS[kind]
    folder = tmp_path_factory.mktemp(kind)
    rows = write(folder, [[(i, word) for i, word in enumerate(shard)] for shard in shards])
    check_exactly_once(make(folder, options=FileOptions(block_bytes=block)), rows)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_known_by_the_index_and_columns_are_arrays(tmp_path, kind):
    make, write = KINDS[kind]
    rows = write(tmp_path, numbered([40, 25]))
    source = make(tmp_path, options=FileOptions(block_bytes=300))
    assert sum(block.rows for block in source.blocks()) == 65 == source.describe()["rows"]
    assert len(source.blocks()) > 4
    (chunk,) = source.read(source.blocks()[0])
    columns = chunk.columns()
    assert columns["id"].dtype == np.int64
    assert columns["word"] == [row["word"] for row in rows[: len(columns["id"])]]
    assert all_rows(make(tmp_path, columns=["word"])) == [{"word": row["word"]} for row in rows]
    check_other_processes(source)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_or_a_shard_that_is_missing(tmp_path, kind):
    make, write = KINDS[kind]
    write(tmp_path / "train", numbered([4]))
    with pytest.raises(FileNotFoundError, match=r"index\.json.*\['train'\]"):
        make(tmp_path).blocks()
    shard = next(path for path in (tmp_path / "train").iterdir() if path.name != "index.json")
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=shard.name):
        make(tmp_path / "train").blocks()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", ["{", "[]", '{"version": 2}', '{"version": 2, "shards": 3, "config": {}}'])
def test_a_damaged_index_is_named(tmp_path, kind, content):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(RecordError, match=r"index\.json is damaged"):
        KINDS[kind][0](tmp_path).blocks()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 400), byte=st.integers(0, 255), cut=st.booleans())
def test_damage_is_an_error_that_names_the_file_or_other_rows(tmp_path_factory, kind, place, byte, cut):
    make, write = KINDS[kind]
    folder = tmp_path_factory.mktemp(kind)
    rows = write(folder, numbered([12]))
    path = next(path for path in folder.iterdir() if path.name != "index.json")
    content = bytearray(path.read_bytes())
    content[place % len(content)] = byte
    path.write_bytes(content[:place] if cut else content)
    source, bad = make(folder), []
    for read in (all_rows, lambda source: [rows_of(source, block, on_bad=bad.append) for block in source.blocks()]):
        try:
            found = read(source)
        except RecordError as error:
            named = str(error)
        else:
            named = str(path)
            assert len(found) == len(rows) or len(found[0]) + len(bad) == len(rows)
        assert str(path) in named
    assert all(str(path) in record.where for record in bad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_record_is_left_out_and_named(tmp_path, kind):
    make, write = KINDS[kind]
    rows = write(tmp_path, [[(0, "first"), (1, "second"), (2, "third")]])
    path = next(path for path in tmp_path.iterdir() if path.name != "index.json")
    path.write_bytes(path.read_bytes().replace(b"second", b"sec\xff\xffd"))
    source = make(tmp_path)
    with pytest.raises(RecordError, match=r"record 1: the field 'word' cannot be decoded: UnicodeDecodeError"):
        all_rows(source)
    (block,), bad = source.blocks(), []
    assert rows_of(source, block, on_bad=bad.append) == [rows[0], rows[2]]
    assert rows_of(source, block, 1, on_bad=bad.append) == [rows[2]]
    assert bad[0].where == f"{path}, record 1"


def test_a_shard_that_changed_is_refused(tmp_path):
    write_mds(tmp_path, numbered([5]))
    source = MdsSource(tmp_path)
    (block,) = source.blocks()
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ChangedFileError, match="shard"):
        rows_of(source, block)


def test_pickles_stay_bytes_unless_a_decoder_is_given(tmp_path):
    import pickle

    write_mds(tmp_path, [[(0, "x")]])
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(offset_file([sized_record([struct.pack("<q", 7), pickle.dumps({"a": 1})], [False, True])]))
    index = json.loads((tmp_path / "index.json").read_text())
    index["shards"][0]["column_encodings"][1] = "pkl"
    index["shards"][0]["raw_data"]["bytes"] = path.stat().st_size
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert all_rows(MdsSource(tmp_path)) == [{"id": 7, "word": pickle.dumps({"a": 1})}]
    assert all_rows(MdsSource(tmp_path, decode={"pkl": pickle.loads})) == [{"id": 7, "word": {"a": 1}}]
    assert all_rows(MdsSource(tmp_path, decode=False))[0]["id"] == struct.pack("<q", 7)


def test_the_samples_are_those_of_mosaicml(tmp_path):
    for name, theirs in rows_of_library("mosaic", "streaming", tmp_path).items():
        source = MdsSource(tmp_path / name, options=FileOptions(block_bytes=1000))
        assert [plain(row) for row in all_rows(source)] == theirs
        assert len(source.versions()) > 2
        assert source.describe()["compression"] == ([] if name == "plain" else [name])


def test_the_samples_are_those_of_litdata(tmp_path):
    for name, theirs in rows_of_library("litdata", "litdata", tmp_path).items():
        source = LitDataSource(tmp_path / name, options=FileOptions(block_bytes=100))
        assert [plain(row) for row in all_rows(source)] == theirs, name
        block = source.blocks()[-1]
        assert list(map(plain, rows_of(source, block, 1))) == theirs[N - block.rows + 1 :]


def test_chunks_that_cannot_be_read_say_why(tmp_path):
    write_litdata(tmp_path, numbered([3]))
    index = json.loads((tmp_path / "index.json").read_text())
    for changed, problem in (
        ({"encryption": {"algorithm": "fernet"}}, "encrypted"),
        ({"item_loader": "ParquetLoader"}, "ParquetLoader"),
        ({"compression": "zstd", "compression_level": "sample"}, "'sample'"),
        ({"data_format": ["int", "hologram"]}, "hologram"),
    ):
        (tmp_path / "index.json").write_text(json.dumps({**index, "config": {**index["config"], **changed}}))
        with pytest.raises(RecordError, match=problem):
            LitDataSource(Path(tmp_path)).blocks()


def test_shards_and_records_in_a_store(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    from headrace import read_hub, read_tfrecord

    store = fsspec.filesystem("memory")
    rows = {kind: write(tmp_path / kind, numbered([30])) for kind, (_, write) in KINDS.items()}
    (tmp_path / "x.tfrecord").write_bytes(tfrecord([example({"id": [i]}) for i in range(30)]))
    store.put(str(tmp_path), "/shards", recursive=True)
    try:
        for kind, (make, _) in KINDS.items():
            check_exactly_once(make(f"memory://shards/{kind}", options=FileOptions(block_bytes=100)), rows[kind])
        stream = read_tfrecord("memory://shards/x.tfrecord", features={"id": int})
        assert [row["id"] for row in stream] == list(range(30))
        if is_installed("pyarrow"):
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "hub.parquet")
            for split in ("train", "test"):
                store.put(str(tmp_path / "hub.parquet"), f"/shards/hub/data/{split}-00000-of-00001.parquet")
            assert list(read_hub("memory://shards/hub", "test")) == [{"id": 1}, {"id": 2}]
    finally:
        store.rm("/shards", recursive=True)
