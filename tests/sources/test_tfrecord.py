"""TFRecord files: the records of a plain reader, whatever the blocks and pieces; examples as protobuf has them."""

from __future__ import annotations

import gzip
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ChangedFileError, RecordError
from headrace.base.optional import is_installed
from headrace.sources import tfrecord
from headrace.sources.options import FileOptions
from headrace.sources.tfrecord import TfRecordSource
from tests.sources.exactly_once import all_rows, check_exactly_once, check_other_processes, rows_of
from tests.sources.library_rows import plain, rows_of_library
from tests.sources.shard_files import example, feature, field
from tests.sources.shard_files import tfrecord as tfrecord_bytes

ints = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), min_size=1, max_size=4)
floats = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=3)
blobs = st.lists(st.binary(max_size=200), min_size=1, max_size=2)
features = st.dictionaries(st.sampled_from(["a", "bb", "é", "x" * 130]), ints | floats | blobs, max_size=4)


def write(folder, records, name="x.tfrecord"):
    path = folder / name
    path.write_bytes(tfrecord_bytes(records))
    return str(path)


def as_read(values):
    """What a list of values becomes where nothing is said of it."""
    return values[0] if isinstance(values[0], bytes) and len(values) == 1 else values


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(st.binary(max_size=60), max_size=20),
    block=st.sampled_from([1, 100, 10_000]),
    piece=st.sampled_from([1, 13, 100, 1 << 20]),
)
def test_records_come_once_whatever_the_blocks_and_pieces(tmp_path_factory, records, block, piece):
    path = write(tmp_path_factory.mktemp("tf"), records)
    with mock.patch.object(tfrecord, "_PIECE_BYTES", piece):
        check_exactly_once(TfRecordSource(path, parse=False, options=FileOptions(block_bytes=block)), records)
        check_exactly_once(TfRecordSource(path, parse=False, split=False), records)


@settings(max_examples=80, deadline=None)
@given(
    examples=st.lists(st.tuples(features, st.booleans()), min_size=1, max_size=12), block=st.sampled_from([1, 10_000])
)
def test_examples_are_dicts_of_their_features(tmp_path_factory, examples, block):
    path = write(tmp_path_factory.mktemp("tf"), [example(one, packed=packed) for one, packed in examples])
    source = TfRecordSource(path, options=FileOptions(block_bytes=block))
    expected = [{name: as_read(values) for name, values in one.items()} for one, _ in examples]
    assert [plain(row) for row in all_rows(source)] == expected


def test_the_examples_are_those_of_the_tfrecord_package(tmp_path):
    ((name, theirs),) = rows_of_library("tfrecord", "tfrecord", tmp_path).items()
    source = TfRecordSource(tmp_path / name, options=FileOptions(block_bytes=500))
    assert [plain(row) for row in all_rows(source)] == theirs
    assert len(source.blocks()) > 2


def test_declared_features_are_columns(tmp_path):
    path = write(
        tmp_path, [example({"label": [i], "x": [i / 2], "name": [f"é{i}".encode()], "t": [1] * i}) for i in range(9)]
    )
    source = TfRecordSource(path, features={"t": [int], "label": int, "x": float, "name": str})
    (chunk,) = source.read(source.blocks()[0])
    columns = chunk.columns()
    assert list(columns) == ["t", "label", "x", "name"]
    assert columns["label"].dtype == np.int64
    assert columns["x"].dtype == np.float32
    assert columns["name"][3] == "é3"
    assert [len(tokens) for tokens in columns["t"]] == list(range(9))
    check_other_processes(TfRecordSource(path, features={"label": int}))


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (example({"label": [1, 2]}), "'label' must have 1 value, but has 2"),
        (example({"label": [0.5]}), "'label' must be int, but is float"),
        (example({"other": [1]}), "no feature 'label'"),
        (example({"label": [1], "name": [b"\xff"]}), "'name' is no UTF-8"),
        (b"\x0a\x05garbage", "no tf.train.Example"),
        (example({"label": [300]})[:-1], "no tf.train.Example"),
        (field(0x0A, field(0x0A, field(0x0A, b"label") + field(0x12, field(0x1A, field(0x0A, b"\x80"))))), "within"),
    ],
)
def test_a_record_that_is_not_what_was_declared_is_bad(tmp_path, record, problem):
    good = example({"label": [7], "name": [b"x"]})
    path = write(tmp_path, [good, record, good])
    source = TfRecordSource(path, features={"label": int, "name": [str]})
    with pytest.raises(RecordError, match=problem):
        all_rows(source)
    (block,), bad = source.blocks(), []
    assert rows_of(source, block, on_bad=bad.append) == [{"label": 7, "name": ["x"]}] * 2
    assert rows_of(source, block, 1, on_bad=bad.append) == [{"label": 7, "name": ["x"]}]
    start = len(tfrecord_bytes([good]))
    assert bad[0].where == f"{path}, record at byte {start}"


def test_other_ways_to_write_the_same_message(tmp_path):
    unknown = bytes([0x98, 0x06, 0x05])  # field 99, a number
    twice = field(0x0A, b"".join(field(0x0A, field(0x0A, b"a") + field(0x12, feature([n]))) for n in (1, 2)))
    value_first = field(0x0A, field(0x0A, field(0x12, feature([5])) + field(0x0A, b"a")))
    parts = example({"a": [1]}) + example({"b": [2]})
    empty = field(0x0A, field(0x0A, field(0x0A, b"a") + field(0x12, b"")))
    path = write(tmp_path, [unknown + example({"a": [3]}), twice, value_first, parts, empty, b"", example({"a": [4]})])
    rows = [plain(row) for row in all_rows(TfRecordSource(path))]
    assert rows == [{"a": [3]}, {"a": [2]}, {"a": [5]}, {"a": [1], "b": [2]}, {"a": []}, {}, {"a": [4]}]


@settings(max_examples=80, deadline=None)
@given(place=st.integers(0, 400), bit=st.integers(0, 7), cut=st.booleans())
def test_damage_is_noticed_and_named(tmp_path_factory, place, bit, cut):
    if not is_installed("google_crc32c"):
        pytest.skip("needs google-crc32c")
    records = [bytes([i]) * 20 for i in range(12)]
    path = tmp_path_factory.mktemp("tf") / "x.tfrecord"
    content = bytearray(tfrecord_bytes(records))
    place %= len(content)
    content[place] ^= 1 << bit
    path.write_bytes(content[: max(1, place)] if cut else content)
    source = TfRecordSource(path, parse=False, options=FileOptions(block_bytes=100))
    is_whole = cut and max(1, place) % 36 == 0
    if not is_whole:
        with pytest.raises(RecordError, match=r"x\.tfrecord, record at byte"):
            all_rows(source)
    bad = []
    kept = [row for block in source.blocks() for row in rows_of(source, block, on_bad=bad.append)]
    assert set(kept) <= set(records)
    assert kept[: place // 36] == records[: place // 36]
    assert is_whole or bad


@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_a_record_that_is_too_large_is_left_out(tmp_path, piece):
    path = write(tmp_path, [b"a", b"b" * 5000, b"c", b"d" * 101, b"e"])
    source = TfRecordSource(path, parse=False, options=FileOptions(max_record_bytes=100))
    bad = []
    with mock.patch.object(tfrecord, "_PIECE_BYTES", piece):
        assert rows_of(source, source.blocks()[0], on_bad=bad.append) == [b"a", b"c", b"e"]
    assert len(bad) == 2
    with pytest.raises(RecordError, match="max_record_bytes=100"):
        all_rows(source)


@pytest.mark.parametrize("name", ["x.tfrecord.gz", "x.tfrecord"])
def test_compressed_files_by_name_or_content(tmp_path, name):
    records = [bytes([i]) * 100 for i in range(200)]
    path = tmp_path / name
    path.write_bytes(gzip.compress(tfrecord_bytes(records)))
    check_exactly_once(TfRecordSource(path, parse=False), records)
    with pytest.raises(ValueError, match="cannot be cut"):
        TfRecordSource(path, split=True).blocks()


def test_a_file_that_changed_is_refused(tmp_path):
    path = write(tmp_path, [b"a"] * 5)
    source = TfRecordSource(path, parse=False)
    (block,) = source.blocks()
    write(tmp_path, [b"a"] * 6)
    with pytest.raises(ChangedFileError, match="has changed"):
        rows_of(source, block)


@pytest.mark.parametrize("features", [["label"], {"label": "int"}, {"label": [int, int]}, {"label": dict}])
def test_features_of_another_kind_are_refused(features):
    with pytest.raises(TypeError, match=r"int, float, bytes, str|dict of types"):
        TfRecordSource("x", features=features)
