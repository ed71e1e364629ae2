from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import pickle
import tarfile
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ChangedFileError, RecordError
from headrace.sources import tar, tar_archive
from headrace.sources.options import FileOptions
from headrace.sources.tar import TarSource
from tests.sources.archives import special, tar_bytes, write_checksum
from tests.sources.exactly_once import all_rows, check_exactly_once, check_other_processes, rows_of

NAMES = st.text("ab./é ", min_size=1, max_size=12).filter(lambda name: not name.endswith("/"))
SIZES = st.sampled_from([0, 1, 511, 512, 513, 3000])
FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}


def write(folder, content, name="x.tar"):
    path = folder / name
    path.write_bytes(content)
    return str(path)


def plain_reader(content):
    """The samples of an archive by Python's own tarfile and WebDataset's rules; None if a field comes twice."""
    samples: list[dict] = []
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            folder, slash, base = member.name.rpartition("/")
            stem, dot, field = base.partition(".")
            if not member.isreg() or not dot or not stem or (not slash and base[:2] == base[-2:] == "__"):
                continue
            key = folder + slash + stem
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key})
            if field.lower() in samples[-1]:
                return None
            samples[-1][field.lower()] = archive.extractfile(member).read()
    return samples


@given(
    members=st.lists(st.tuples(NAMES, SIZES), max_size=25),
    tar_format=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    block_bytes=st.sampled_from([1, 1024, 5000, 1 << 20]),
    read_bytes=st.sampled_from([1, 512, 1000, 1 << 16]),
)
@settings(max_examples=150, deadline=None)
def test_the_samples_are_those_of_a_plain_reader(tmp_path_factory, members, tar_format, block_bytes, read_bytes):
    content = tar_bytes([(name, bytes([i]) * size) for i, (name, size) in enumerate(members)], format=tar_format)
    expected = plain_reader(content)
    path = write(tmp_path_factory.mktemp("tar"), content)
    with mock.patch.multiple(tar_archive, _LEAST_READ_BYTES=read_bytes, _MOST_READ_BYTES=read_bytes * 3):
        source = TarSource(path, decode=False, options=FileOptions(block_bytes=block_bytes))
        if expected is None:
            with pytest.raises(RecordError, match="comes twice"):
                all_rows(source)
            return
        check_exactly_once(source, expected)
        check_exactly_once(TarSource(path, decode=False, split=False), expected)


def numbered(n=50, size=600):
    return [(f"{i:04}.{field}", field.encode() * size) for i in range(n) for field in ("a", "b")]


def expected_numbered(n=50, size=600):
    return [{"__key__": f"{i:04}", "a": b"a" * size, "b": b"b" * size} for i in range(n)]


@pytest.mark.parametrize("tar_format", FORMATS)
def test_blocks_are_cut_between_samples(tmp_path, tar_format):
    path = write(tmp_path, tar_bytes(numbered(), format=FORMATS[tar_format]))
    source = TarSource(path, decode=False, options=FileOptions(block_bytes=10_000))
    check_exactly_once(source, expected_numbered())
    assert [block.rows for block in source.blocks()] == [4] * 12 + [2]
    assert source.describe()["rows"] == 50


def test_headers_with_notes_on_times_as_webdataset_writes_them(tmp_path):
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        for name, content in numbered():
            header = tarfile.TarInfo(name)
            header.size, header.mtime = len(content), 1700000000.25
            archive.addfile(header, io.BytesIO(content))
    source = TarSource(write(tmp_path, memory.getvalue()), decode=False, options=FileOptions(block_bytes=10_000))
    check_exactly_once(source, expected_numbered())
    assert len(source.blocks()) > 5


@pytest.mark.parametrize("tar_format", ["pax", "gnu"])
def test_long_names(tmp_path, tar_format):
    name = "folder/" * 40 + "x"
    content = tar_bytes([(f"{name}.a", b"1"), (f"{name}.b", b"2"), ("y.a", b"3")], format=FORMATS[tar_format])
    expected = [{"__key__": name, "a": b"1", "b": b"2"}, {"__key__": "y", "a": b"3"}]
    check_exactly_once(TarSource(write(tmp_path, content), decode=False, options=FileOptions(block_bytes=1)), expected)


def test_a_long_name_in_the_prefix_of_ustar(tmp_path):
    name = "p" * 90 + "/" + "n" * 90
    content = tar_bytes([(f"{name}.a", b"1")], format=tarfile.USTAR_FORMAT)
    assert all_rows(TarSource(write(tmp_path, content), decode=False)) == [{"__key__": name, "a": b"1"}]


def test_archives_from_before_there_was_a_magic(tmp_path):
    content = bytearray(tar_bytes([("x.a", b"1")]))
    content[257:265] = bytes(8)
    write_checksum(content, 0)
    assert all_rows(TarSource(write(tmp_path, content), decode=False)) == [{"__key__": "x", "a": b"1"}]


def test_sizes_too_large_for_octal_digits(tmp_path):
    content = bytearray(tar_bytes([("x.a", b"12345"), ("y.a", b"6")]))
    content[124:136] = b"\x80" + (5).to_bytes(11, "big")
    write_checksum(content, 0)
    rows = all_rows(TarSource(write(tmp_path, content), decode=False))
    assert rows == [{"__key__": "x", "a": b"12345"}, {"__key__": "y", "a": b"6"}]


def test_an_archive_within_an_archive_is_content(tmp_path):
    inner = tar_bytes(numbered(5))
    path = write(tmp_path, tar_bytes([("0.tar", inner), ("0.txt", b""), ("1.tar", inner)]))
    source = TarSource(path, decode=False, options=FileOptions(block_bytes=1))
    check_exactly_once(source, [{"__key__": "0", "tar": inner, "txt": b""}, {"__key__": "1", "tar": inner}])


@pytest.mark.parametrize("name", ["../../up.txt", "/etc/passwd.txt", "a/../b.txt", "C:\\x.txt", "nul\x01.txt"])
def test_hostile_names_are_keys_and_nothing_else(tmp_path, monkeypatch, name):
    folder = tmp_path / "inner" / "work"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    path = write(tmp_path, tar_bytes([(name, b"text")]))
    before = sorted(tmp_path.rglob("*"))
    assert all_rows(TarSource(path)) == [{"__key__": name.removesuffix(".txt"), "txt": "text"}]
    assert sorted(tmp_path.rglob("*")) == before


def test_only_regular_files_are_read(tmp_path):
    members = [
        ("0.txt", b"zero"),
        special("0.link", tarfile.SYMTYPE, "/etc/passwd"),
        special("0.hard", tarfile.LNKTYPE, "0.txt"),
        special("0.d", tarfile.DIRTYPE),
        special("0.null", tarfile.CHRTYPE),
        special("0.pipe", tarfile.FIFOTYPE),
        ("0.json", b"{}"),
    ]
    assert all_rows(TarSource(write(tmp_path, tar_bytes(members)))) == [{"__key__": "0", "txt": "zero", "json": {}}]


def test_sparse_members_are_bad_records(tmp_path):
    header = tarfile.TarInfo("x.bin")
    header.type = tarfile.GNUTYPE_SPARSE
    noted = tarfile.TarInfo("y.bin")
    noted.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.realsize": str(1 << 50)}
    path = write(tmp_path, tar_bytes([header, noted, ("z.txt", b"good")]))
    source = TarSource(path)
    bad = []
    (block,) = source.blocks()
    assert rows_of(source, block, 0, bad.append) == [{"__key__": "z", "txt": "good"}]
    assert ["sparse" in record.error for record in bad] == [True, True]


def test_large_samples_are_bad_records_that_are_never_held(tmp_path):
    path = write(tmp_path, tar_bytes([("0.a", b"x" * 600), ("0.b", b"x" * 600), ("1.a", b"small")]))
    source = TarSource(path, options=FileOptions(max_record_bytes=1000))
    bad = []
    assert rows_of(source, source.blocks()[0], 0, bad.append) == [{"__key__": "1", "a": b"small"}]
    assert "more than 1000 bytes" in bad[0].error
    assert "sample '0' at byte 0" in bad[0].where
    with pytest.raises(RecordError, match="pass a larger `max_record_bytes`"):
        all_rows(source)


def test_headers_that_promise_absurd_sizes_are_harmless(tmp_path):
    header = tarfile.TarInfo("x.bin")
    header.size = 1 << 60
    content = header.tobuf(tarfile.GNU_FORMAT)
    source = TarSource(write(tmp_path, content + bytes(1024)))
    with pytest.raises(RecordError, match="in the middle of a member"):
        all_rows(source)
    notes = tarfile.TarInfo("notes")
    notes.type, notes.size = tarfile.XHDTYPE, 1 << 40
    with pytest.raises(RecordError, match="no name is that long"):
        all_rows(TarSource(write(tmp_path, notes.tobuf(tarfile.GNU_FORMAT) + bytes(1024), "y.tar")))


@pytest.mark.parametrize("cut", [1, 100, 511, 513, 700, 1023])
@pytest.mark.parametrize("compressed", [False, True])
def test_truncated_archives_are_told_and_what_came_before_is_kept(tmp_path, cut, compressed):
    content = tar_bytes([("0.a", b"x" * 1000), ("1.a", b"y" * 1000)])[: 1536 + cut]
    path = write(tmp_path, gzip.compress(content), "x.tar.gz") if compressed else write(tmp_path, content)
    source = TarSource(path, decode=False)
    bad = []
    rows = [row for block in source.blocks() for row in rows_of(source, block, 0, bad.append)]
    # A header that was cut may have been that of another member of the sample before.
    assert rows == ([{"__key__": "0", "a": b"x" * 1000}] if cut >= 512 else [])
    assert len(bad) == 1
    assert "ends at byte" in bad[0].error
    with pytest.raises(RecordError, match="ends at byte"):
        all_rows(source)


def test_damaged_compression_is_a_bad_record(tmp_path):
    content = bytearray(gzip.compress(tar_bytes(numbered(20)), mtime=0))[:-20]
    source = TarSource(write(tmp_path, content, "x.tar.gz"), decode=False)
    bad = []
    rows_of(source, source.blocks()[0], 0, bad.append)
    assert len(bad) == 1
    assert "gzip" in bad[0].error


def damaged(content, place, byte):
    return content[:place] + bytes([byte]) + content[place + 1 :]


@pytest.mark.parametrize("place", [0, 100, 130, 140, 150, 156, 200, 258, 345, 511], ids=lambda place: f"byte {place}")
@pytest.mark.parametrize("n", [3, 40], ids=["few", "a table"])
@pytest.mark.parametrize("split", [True, False])
def test_a_damaged_header_is_told_and_what_came_before_is_kept(tmp_path, place, n, split):
    header = (2 * n - 3) * 1536  # of the second member of the last sample but one
    path = write(tmp_path, damaged(tar_bytes(numbered(n)), header + place, ord("7")))
    source = TarSource(path, decode=False, split=split, options=FileOptions(block_bytes=10_000))
    bad = []
    rows = [row for block in source.blocks() for row in rows_of(source, block, 0, bad.append)]
    assert rows == expected_numbered(n)[:-2]
    assert len(bad) == 1
    assert f"header at byte {header}" in bad[0].error
    with pytest.raises(RecordError, match=rf"x\.tar.*header at byte {header}\b"):
        all_rows(source)


@pytest.mark.parametrize("tar_format", FORMATS)
def test_a_damaged_header_of_a_long_name_is_told(tmp_path, tar_format):
    content = tar_bytes([("0.a", b"1"), ("f" * 80 + "/" + "n" * 90 + ".a", b"2")], format=FORMATS[tar_format])
    with pytest.raises(RecordError, match="the header at byte 1024 is damaged"):
        all_rows(TarSource(write(tmp_path, damaged(content, 1024 + 101, ord("7"))), decode=False))


@pytest.mark.parametrize("n", [1, 30])
def test_historical_checksums_of_signed_bytes_are_right_too(tmp_path, n):
    content = bytearray(tar_bytes([(f"é{i}.a", b"1") for i in range(n)], format=tarfile.GNU_FORMAT))
    for header in range(0, n * 1024, 1024):
        write_checksum(content, header, is_signed=True)
    assert all_rows(TarSource(write(tmp_path, content), decode=False)) == [
        {"__key__": f"é{i}", "a": b"1"} for i in range(n)
    ]


@pytest.mark.parametrize("written", [b"%07o\0", b"%7o\0", b"%06o\0\0", b"%06o  "])
def test_checksums_may_be_written_in_other_ways(tmp_path, written):
    content = bytearray(tar_bytes(numbered(20)))
    for header in range(0, 40 * 1536, 1536):
        write_checksum(content, header, written=written)
    check_exactly_once(TarSource(write(tmp_path, content), decode=False), expected_numbered(20))


@pytest.mark.parametrize(("field", "content"), [("jpg", b"no"), ("json", b"{no"), ("npy", b"no array"), ("cls", b"x")])
def test_a_member_that_cannot_be_decoded_is_named_and_shown(tmp_path, field, content):
    if field == "jpg":
        pytest.importorskip("PIL.Image")
    path = write(tmp_path, tar_bytes([("k.bin", b"other"), (f"k.{field}", content)]))
    with pytest.raises(RecordError) as raised:
        all_rows(TarSource(path))
    told = str(raised.value)
    assert f"x.tar, sample 'k' at byte 0: the field '{field}' cannot be decoded: " in told
    assert told.endswith(f" The record is {content!r}.")
    assert "BytesIO" not in told
    assert "b'k'" not in told


@pytest.mark.parametrize("content", [b"no tar at all" * 100, b"short", b"\xff" * 2048])
def test_what_is_no_archive_is_told(tmp_path, content):
    source = TarSource(write(tmp_path, content))
    with pytest.raises(RecordError, match=r"x\.tar.*this is not a tar archive"):
        all_rows(source)


@pytest.mark.parametrize(
    ("content", "reader"),
    [(b"two\nlines\n", "read_text"), (b'{"a": 1}\n' * 200, "read_jsonl"), (b"PAR1" + bytes(600), "read_parquet")],
)
def test_the_reader_of_what_is_no_archive_is_named(tmp_path, content, reader):
    with pytest.raises(RecordError, match=rf"not a tar archive.*Use {reader}\b"):
        all_rows(TarSource(write(tmp_path, content)))


@pytest.mark.parametrize("content", [b"", bytes(10240), tar_bytes([]), tar_bytes([("README", b"no sample")])])
def test_empty_archives_have_no_samples(tmp_path, content):
    source = TarSource(write(tmp_path, content))
    assert list(source.blocks()) == []
    assert source.describe()["rows"] == 0
    assert all_rows(TarSource(write(tmp_path, content), split=False)) == []


@pytest.mark.parametrize("n", [1, 40], ids=["one", "a table"])
@pytest.mark.parametrize("field", ["__key__", "__KEY__"])
def test_a_member_never_takes_the_place_of_the_key(tmp_path, n, field):
    members = [(f"{i:04}.{name}", b"1") for i in range(n) for name in ("a", field)]
    rows = all_rows(TarSource(write(tmp_path, tar_bytes(members)), decode=False))
    assert rows == [{"__key__": f"{i:04}", "a": b"1"} for i in range(n)]


def test_of_archives_one_behind_the_other_the_first_is_read(tmp_path):
    path = write(tmp_path, tar_bytes([("0.a", b"1")]) + tar_bytes([("1.a", b"2")]))
    assert all_rows(TarSource(path, decode=False)) == [{"__key__": "0", "a": b"1"}]


def test_equal_keys_apart_from_each_other_are_two_samples(tmp_path):
    path = write(tmp_path, tar_bytes([("0.a", b"1"), ("1.a", b"2"), ("0.b", b"3")]))
    assert [row["__key__"] for row in all_rows(TarSource(path))] == ["0", "1", "0"]


def test_a_field_that_comes_twice_makes_a_bad_record(tmp_path):
    path = write(tmp_path, tar_bytes([("0.jpg", b"1"), ("0.JPG", b"2"), ("1.a", b"3")]))
    source = TarSource(path, decode=False)
    bad = []
    assert rows_of(source, source.blocks()[0], 0, bad.append) == [{"__key__": "1", "a": b"3"}]
    assert bad[0].error == "the member '0.JPG' comes twice"


def test_bad_records_do_not_count_as_rows(tmp_path):
    members = [(f"{i}.cls", b"bad" if i in (0, 3, 4) else b"%d" % i) for i in range(8)]
    source = TarSource(write(tmp_path, tar_bytes(members)))
    (block,) = source.blocks()
    rows = rows_of(source, block, 0, lambda record: None)
    assert [row["cls"] for row in rows] == [1, 2, 5, 6, 7]
    for first_row in range(6):
        assert rows_of(source, block, first_row, lambda record: None) == rows[first_row:]
    with pytest.raises(RecordError, match="ValueError: invalid literal"):
        rows_of(source, block)


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_compressed_archives_are_one_block(tmp_path, suffix, compress):
    path = write(tmp_path, compress(tar_bytes(numbered())), f"x.tar.{suffix}")
    source = TarSource(path, decode=False, options=FileOptions(block_bytes=1))
    check_exactly_once(source, expected_numbered())
    assert [block.rows for block in source.blocks()] == [None]
    with pytest.raises(ValueError, match="cannot be cut"):
        TarSource(path, split=True).blocks()


def test_members_larger_than_any_buffer(tmp_path):
    members = [(f"{i}.bin", bytes([i]) * (3 << 20)) for i in range(3)]
    source = TarSource(write(tmp_path, tar_bytes(members)), options=FileOptions(block_bytes=1))
    check_exactly_once(source, [{"__key__": str(i), "bin": bytes([i]) * (3 << 20)} for i in range(3)], first_rows=[1])


def test_chunks_stay_small(tmp_path):
    source = TarSource(write(tmp_path, tar_bytes(numbered(2000))), decode=False)
    (block,) = source.blocks()
    assert max(map(len, source.read(block))) < 1000


def test_arrays_that_would_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tar, "_MOST_UNPACKED_BYTES", 1 << 20)
    arrays = io.BytesIO()
    np.savez_compressed(arrays, a=np.zeros(1 << 20, np.uint16))
    path = write(tmp_path, tar_bytes([("a.npz", arrays.getvalue())]))
    with pytest.raises(RecordError, match="the arrays would take 2097280 bytes; at most 1048576 are unpacked"):
        all_rows(TarSource(path))


def test_an_archive_that_expands_far_takes_little_memory(tmp_path):
    content = tar_bytes([("a.bin", bytes(64 << 20)), ("b.bin", b"last")])
    path = write(tmp_path, gzip.compress(content, 1), "a.tar.gz")
    del content
    source, bad = TarSource(path, options=FileOptions(max_record_bytes=1 << 20)), []
    tracemalloc.start()
    try:
        rows = [row for block in source.blocks() for row in rows_of(source, block, 0, bad.append)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == [{"__key__": "b", "bin": b"last"}]
    assert "more than 1048576 bytes" in bad[0].error
    assert peak < 8 << 20


def test_decoders(tmp_path):
    array, arrays = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(3))
    np.savez(arrays, a=np.arange(2), b=np.ones(1))
    members = {
        "json": json.dumps({"a": [1]}).encode(),
        "txt": "grün".encode(),
        "cls": b"7",
        "npy": array.getvalue(),
        "npz": arrays.getvalue(),
        "raw": b"\0",
        "pkl": pickle.dumps([1, 2]),
    }
    path = write(tmp_path, tar_bytes([(f"0.{field}", content) for field, content in members.items()]))
    (sample,) = all_rows(TarSource(path))
    assert sample["json"] == {"a": [1]}
    assert sample["txt"] == "grün"
    assert sample["cls"] == 7
    assert sample["npy"].tolist() == [0, 1, 2]
    assert {name: values.tolist() for name, values in sample["npz"].items()} == {"a": [0, 1], "b": [1.0]}
    assert sample["raw"] == b"\0"
    assert sample["pkl"] == members["pkl"]
    assert all_rows(TarSource(path, decode=False)) == [{"__key__": "0", **members}]
    (mine,) = all_rows(TarSource(path, decode={"pkl": pickle.loads, "json": None, "cls": float}))
    assert (mine["pkl"], mine["json"], mine["cls"], mine["txt"]) == ([1, 2], members["json"], 7.0, "grün")


def test_a_decoder_of_a_whole_name_comes_before_that_of_its_last_part(tmp_path):
    path = write(tmp_path, tar_bytes([("0.seg.txt", b"1"), ("0.other.txt", b"2")]))
    assert all_rows(TarSource(path, decode={"seg.txt": int})) == [{"__key__": "0", "seg.txt": 1, "other.txt": "2"}]


def test_pickled_arrays_are_refused(tmp_path):
    pickled = io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(RecordError, match="allow_pickle=False"):
        all_rows(TarSource(write(tmp_path, tar_bytes([("0.npy", pickled.getvalue())]))))


def test_images(tmp_path):
    image = pytest.importorskip("PIL.Image")

    def png(array):
        memory = io.BytesIO()
        image.fromarray(array).save(memory, "png")
        return memory.getvalue()

    colour = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    grey = np.array([[0, 128, 255]], np.uint8)
    depth = np.array([[0, 60_000]], np.uint16)
    members = [("0.png", png(colour)), ("1.png", png(grey)), ("2.depth.png", png(depth)), ("3.jpg", b"no image")]
    source = TarSource(write(tmp_path, tar_bytes(members)))
    bad = []
    samples = rows_of(source, source.blocks()[0], 0, bad.append)
    np.testing.assert_array_equal(samples[0]["png"], colour)
    np.testing.assert_array_equal(samples[1]["png"], np.repeat(grey[..., None], 3, axis=2))
    assert samples[2]["depth.png"].tolist() == [[[0], [60_000]]]
    assert bad[0].error == "the field 'jpg' cannot be decoded: UnidentifiedImageError: cannot identify image file"
    assert bad[0].raw == b"no image"


def test_columns(tmp_path):
    path = write(tmp_path, tar_bytes([("0.cls", b"1"), ("0.txt", b"a"), ("1.cls", b"2")]))
    source = TarSource(path)
    (chunk,) = source.read(source.blocks()[0])
    columns = chunk.columns()
    assert columns["__key__"] == ["0", "1"]
    assert columns["cls"].dtype == np.int64
    assert columns["txt"] == ["a", None]
    assert chunk.slice(1, 2).rows() == [{"__key__": "1", "cls": 2}]


def test_many_archives_come_in_order(tmp_path):
    for i in range(12):
        write(tmp_path, tar_bytes([(f"{i}.cls", b"%d" % i)]), f"part-{i}.tar")
    assert [row["cls"] for row in all_rows(TarSource(str(tmp_path / "part-*.tar")))] == list(range(12))


def test_a_file_that_changed_since_it_was_listed_is_noticed(tmp_path):
    path = write(tmp_path, tar_bytes(numbered()))
    source = TarSource(path)
    block = source.blocks()[0]
    os.utime(path, ns=(0, 0))
    with pytest.raises(ChangedFileError, match=r"x\.tar"):
        rows_of(source, block)


def test_it_works_in_other_processes(tmp_path):
    check_other_processes(
        TarSource(write(tmp_path, tar_bytes(numbered())), decode=False, options=FileOptions(block_bytes=20_000))
    )


def test_remote_archives_are_cut_only_if_asked_for(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/archives/x.tar", tar_bytes(numbered()))
    whole = TarSource("memory://archives/x.tar", decode=False)
    assert len(whole.blocks()) == 1
    check_exactly_once(whole, expected_numbered())
    cut = TarSource("memory://archives/x.tar", decode=False, split=True, options=FileOptions(block_bytes=10_000))
    assert len(cut.blocks()) == 13
    check_exactly_once(cut, expected_numbered())
