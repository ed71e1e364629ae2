from __future__ import annotations

import random
import tarfile
from unittest import mock

import pytest

from headrace.base.errors import RecordError
from headrace.sources import tar_samples
from headrace.sources.options import FileOptions
from headrace.sources.tar import TarSource
from headrace.sources.tar_archive import Members
from headrace.sources.tar_samples import Table, split_off_table
from tests.sources.archives import tar_bytes, write_checksum
from tests.sources.exactly_once import all_rows, check_exactly_once, rows_of


def members_of(names):
    places = [1024 * i for i in range(len(names))]
    return Members(names, places, [place + 512 for place in places], [512] * len(names))


def names_of(n, fields, key="{:04}"):
    return [f"{key.format(i)}.{field}".encode() for i in range(n) for field in fields]


@pytest.mark.parametrize("fields", [["bin"], ["jpg", "cls"], ["a.b", "", "C", "é"]])
@pytest.mark.parametrize("key", ["{:04}", "./{:04}", "v1.0/x/{:04}", "\n {:04}"])
def test_all_but_the_first_sample_and_the_last_are_a_table(fields, key):
    names = names_of(20, fields, key)
    head, table, tail = split_off_table(members_of(names))
    n = len(fields)
    assert isinstance(table, Table)
    assert (head.names, table.members.names, tail.names) == (names[:n], names[n:-n], names[-n:])
    assert table.keys == [key.format(i).encode() for i in range(1, 19)]
    assert table.fields == tuple(field.encode().lower() for field in fields)
    assert table.rest(3).keys == table.keys[3:]
    assert table.rest(3).members.starts == table.members.starts[3 * n :]


def change(names, place, name):
    return [*names[:place], name, *names[place + 1 :]]


@pytest.mark.parametrize(
    "names",
    [
        [],
        names_of(5, "a"),
        [b"0.a"] * 20,
        [b"0.%d" % i for i in range(20)],
        names_of(20, "ab")[:21] + names_of(30, "ab")[22:],  # a field is missing
        change(names_of(20, "ab"), 21, b"0010.c"),  # another one
        change(names_of(20, "ab"), 21, b"0010.A"),  # twice
        change(names_of(20, "ab"), 21, b"0011.b"),  # another key
        change(names_of(20, "a"), 10, b"0009.a"),  # the same key
        change(names_of(20, "a"), 10, b"README"),
        change(names_of(20, "a"), 10, b".hidden.a"),
        change(names_of(20, "a"), 10, b"x/.hidden.a"),
        change(names_of(20, "a"), 10, b"__0.a__"),
        change(names_of(20, "a"), 10, b"0010.a/x"),
        [b"0.a" + b"\0".join(names_of(20, "a"))],  # a name that a note has given
    ],
)
def test_what_differs_is_no_table(names):
    members = members_of(names)
    assert list(split_off_table(members)) == [members]


def rough_archive(seed):
    """Long runs of samples with the same fields, with all that may come between them."""
    rng = random.Random(seed)
    members, expected = [], []
    for i in range(rng.randint(50, 400)):
        if rng.random() < 0.02:
            members.append((rng.choice(["README", f".{i}.a", "__meta.a__", "folder.d/none"]), b"passed over"))
        key = f"{'long-name' * 14 if rng.random() < 0.01 else 'x'}/{i // (2 if rng.random() < 0.01 else 1)}"
        fields = ["a", "b", "seg.png"][: 1 if rng.random() < 0.03 else 3]
        contents = {field: rng.randbytes(rng.choice([0, 1, 512, 700])) for field in fields}
        if expected and expected[-1]["__key__"] == key:
            continue
        members += [(f"{key}.{field}", content) for field, content in contents.items()]
        expected.append({"__key__": key, **contents})
    return members, expected


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("seed", range(6))
def test_samples_are_the_same_whether_they_are_in_a_table_or_not(tmp_path, seed, tar_format):
    members, expected = rough_archive(seed)
    (tmp_path / "x.tar").write_bytes(tar_bytes(members, format=tar_format))
    source = TarSource(tmp_path / "x.tar", decode=False, options=FileOptions(block_bytes=100_000))
    check_exactly_once(source, expected)
    with mock.patch.object(tar_samples, "_FEWEST", 1 << 30):
        assert all_rows(source) == expected


def test_samples_of_a_table_that_are_bad_are_told_one_by_one(tmp_path):
    contents = [b"bad" if i in (30, 31, 60) else b"%d" % i for i in range(100)]
    (tmp_path / "x.tar").write_bytes(tar_bytes([(f"{i}.cls", content) for i, content in enumerate(contents)]))
    source = TarSource(tmp_path / "x.tar")
    (block,) = source.blocks()
    bad = []
    rows = rows_of(source, block, 0, bad.append)
    assert [row["cls"] for row in rows] == [i for i in range(100) if i not in (30, 31, 60)]
    assert [record.raw for record in bad] == [b"bad"] * 3
    assert [record.where.partition(", ")[2] for record in bad] == [
        f"sample '{i}' at byte {i * 1024}" for i in (30, 31, 60)
    ]
    with pytest.raises(RecordError, match=r"sample '30' at byte 30720: the field 'cls' cannot be decoded: ValueError"):
        rows_of(source, block)
    assert [row["cls"] for row in rows_of(source, block, 61)] == list(range(61, 100))


def test_samples_of_a_table_that_are_too_large_are_bad(tmp_path):
    members = [(f"{i}.a", bytes(2000 if i == 20 else 10)) for i in range(40)]
    (tmp_path / "x.tar").write_bytes(tar_bytes(members))
    source = TarSource(tmp_path / "x.tar", options=FileOptions(max_record_bytes=1000))
    bad = []
    rows = rows_of(source, source.blocks()[0], 0, bad.append)
    assert [row["__key__"] for row in rows] == [str(i) for i in range(40) if i != 20]
    assert ["more than 1000 bytes" in record.error for record in bad] == [True]


def test_keys_that_are_no_text_survive(tmp_path):
    header = [tarfile.TarInfo("x" * 4 + f"{i:02}.a") for i in range(30)]
    content = bytearray(tar_bytes(header))
    names = [b"\xff\xe2\x82%02d" % i for i in range(30)]
    for i, name in enumerate(names):
        content[512 * i : 512 * i + 100] = (name + b".a").ljust(100, b"\0")
        write_checksum(content, 512 * i)
    (tmp_path / "x.tar").write_bytes(content)
    rows = all_rows(TarSource(tmp_path / "x.tar", decode=False))
    assert [row["__key__"].encode("utf-8", "surrogateescape") for row in rows] == names
