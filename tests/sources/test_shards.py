"""MDS and LitData: what the libraries wrote, read as they read it; damage is named."""

from __future__ import annotations

import json
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ChangedFileError, RecordError
from headrace.sources.litdata import LitDataSource
from headrace.sources.mds import MdsSource
from headrace.sources.options import FileOptions
from tests.sources.exactly_once import all_rows, check_exactly_once, check_other_processes, rows_of
from tests.sources.shard_files import offset_file, sized_record, write_litdata, write_mds

KINDS = {"mds": (MdsSource, write_mds), "litdata": (LitDataSource, write_litdata)}
words = st.text(alphabet="ab é€\n", max_size=8)


def numbered(sizes, word="word"):
    numbers = iter(range(sum(sizes)))
    return [[(next(numbers), f"{word} {i}") for i in range(size)] for size in sizes]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(shards=st.lists(st.lists(words, max_size=9), min_size=1, max_size=3), block=st.sampled_from([1, 30, 100, 10_000]))
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
    source = make(folder)
    try:
        found = all_rows(source)
    except RecordError as error:
        assert str(path) in str(error)
    else:
        assert len(found) == len(rows)
    bad = []
    try:
        kept = [row for block in source.blocks() for row in rows_of(source, block, on_bad=bad.append)]
    except RecordError as error:
        assert str(path) in str(error)
    else:
        assert len(kept) + len(bad) == len(rows)
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


# What the libraries themselves write and read.


def plain(value):
    """A value of any library as plain Python."""
    match value:
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(plain(each) for each in value)
        case memoryview():
            return bytes(value)
        case _ if type(value).__module__.startswith("PIL"):
            return np.asarray(value.convert("RGB")).tolist()
        case _:
            return np.asarray(value).tolist() if hasattr(value, "dtype") else value


@pytest.fixture
def mosaic():
    """MosaicML's library, where it can be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("streaming", reason="needs mosaicml-streaming", exc_type=ImportError)


def mds_samples(n):
    from decimal import Decimal

    from PIL import Image

    random = np.random.default_rng(0)
    for i in range(n):
        pixels = random.integers(0, 255, (4, 5, 3), np.uint8)
        yield {
            "number": i,
            "small": np.int8(i),
            "real": np.float32(i / 3),
            "text": "é" * (i % 4),
            "raw": bytes(i % 3),
            "fixed": random.random((2, 3)).astype(np.float32),
            "typed": np.arange(i + 1, dtype=np.int16),
            "free": np.ones((i % 3 + 1, 2), np.uint8),
            "json": {"i": [i, None]},
            "big": 10**30 + i,
            "decimal": Decimal("1.50") * i,
            "png": Image.fromarray(pixels),
            "pil": Image.fromarray(pixels),
        }


MDS_COLUMNS = {
    "number": "int",
    "small": "int8",
    "real": "float32",
    "text": "str",
    "raw": "bytes",
    "fixed": "ndarray:float32:2,3",
    "typed": "ndarray:int16",
    "free": "ndarray",
    "json": "json",
    "big": "str_int",
    "decimal": "str_decimal",
    "png": "png",
    "pil": "pil",
}


@pytest.mark.parametrize("compression", [None, "zstd", "gz"])
def test_the_samples_are_those_of_mosaicml(tmp_path, mosaic, compression):
    from streaming.base.format import reader_from_json

    folder = tmp_path / "out"
    with mosaic.MDSWriter(out=str(folder), columns=MDS_COLUMNS, compression=compression, size_limit=1 << 13) as writer:
        for sample in mds_samples(50):
            writer.write(sample)
    index = json.loads((folder / "index.json").read_text())
    source = MdsSource(folder, options=FileOptions(block_bytes=1000))
    rows = [plain(row) for row in all_rows(source)]
    readers = [reader_from_json(str(folder), None, entry) for entry in index["shards"]]
    if compression:
        from streaming.base.compression import decompress

        for entry in index["shards"]:
            packed = (folder / entry["zip_data"]["basename"]).read_bytes()
            (folder / entry["raw_data"]["basename"]).write_bytes(decompress(compression, packed))
    assert len(readers) > 2
    assert rows == [plain(reader[i]) for reader in readers for i in range(reader.samples)]
    assert source.describe()["compression"] == ([] if compression is None else [{"gz": "gzip"}.get(compression, compression)])


LITDATA_SAMPLES = {
    "dicts": lambda i: {"id": i, "x": i / 3, "ok": i % 2 == 0, "text": "é" * i, "raw": bytes(i), "n": np.arange(i)},
    "nested": lambda i: {"a": {"b": i, "c": np.ones((2, i + 1), np.float32)}, "l": [1, 2.5, "x"], "r": [{"k": i}]},
    "tuples": lambda i: (i, "text", np.arange(3, dtype=np.uint16)),
    "single": lambda i: i,
    "table": lambda i: {"text": "word " * i, "tags": ["a", "b"]},
}


@pytest.mark.parametrize("shape", LITDATA_SAMPLES)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_samples_are_those_of_litdata(tmp_path, shape, compression):
    streaming = pytest.importorskip("litdata.streaming", reason="needs litdata", exc_type=ImportError)
    pytest.importorskip("zstd") if compression else None
    from litdata import StreamingDataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = streaming.Cache(str(tmp_path), chunk_size=7, compression=compression)
        for i in range(20):
            cache[i] = LITDATA_SAMPLES[shape](i)
        cache.done()
        cache.merge()
        source = LitDataSource(tmp_path, options=FileOptions(block_bytes=100))
        dataset = StreamingDataset(str(tmp_path), shuffle=False)
        theirs = [plain(dataset[i]) for i in range(20)]
    rows = [plain(row) for row in all_rows(source)]
    assert rows == theirs
    assert rows_of(source, source.blocks()[-1], 1) == rows_of(source, source.blocks()[-1])[1:] or shape != "single"


def test_tensors_of_litdata_are_arrays(tmp_path):
    torch = pytest.importorskip("torch")
    streaming = pytest.importorskip("litdata.streaming", reason="needs litdata", exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = streaming.Cache(str(tmp_path), chunk_size=3)
        for i in range(5):
            cache[i] = {"v": torch.arange(i, dtype=torch.int32), "m": torch.full((2, 2), i, dtype=torch.float16)}
        cache.done()
        cache.merge()
    rows = all_rows(LitDataSource(tmp_path))
    assert [row["v"].tolist() for row in rows] == [list(range(i)) for i in range(5)]
    assert [row["m"].dtype for row in rows] == [np.float16] * 5
    assert rows[3]["m"].tolist() == [[3.0, 3.0], [3.0, 3.0]]


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
