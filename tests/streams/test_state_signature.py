"""Files of a state: touched, copied and moved ones are the same; changed ones are told, and named."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from headrace.base.errors import StateError
from headrace.sources.files import fingerprint, stat_local
from headrace.streams.readers import mix, read_sql, read_text
from headrace.streams.state_signature import check_described, compare_files, describe

FORMER = 1  # a file of a state as it was saved before there were fingerprints: without its last entry


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def touch(path, seconds=1000):
    os.utime(path, (seconds, seconds))


def saved(stream, former=False):
    """What a state would say, having been a file."""
    described = json.loads(json.dumps(describe(stream.recipe)))
    if former:
        described["files"] = [file[:-FORMER] for file in described["files"]]
    return described


def check(state, stream):
    """The warnings that there are."""
    warnings = []
    check_described(state, describe(stream.recipe), warnings.append)
    return warnings


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data", a="1\n2\n", b="3\n4\n", c__a="5\n")


class TestTheSameFiles:
    def test_touched(self, data):
        state = saved(read_text(data))
        touch(data / "a")
        assert check(state, read_text(data)) == []

    def test_copied_to_another_place(self, data, tmp_path):
        state = saved(read_text(data))
        shutil.copytree(data, tmp_path / "other" / "mount", copy_function=shutil.copyfile)
        touch(tmp_path / "other" / "mount" / "b")
        assert check(state, read_text(tmp_path / "other" / "mount")) == []

    def test_named_from_the_folder_that_they_lie_in(self, data, monkeypatch):
        state = saved(read_text(data))
        monkeypatch.chdir(data)
        assert check(state, read_text(["a", "b", "c/a"])) == []

    def test_one_file_elsewhere(self, data, tmp_path):
        state = saved(read_text(data / "a"))
        shutil.copyfile(data / "a", tmp_path / "a")
        assert check(state, read_text(tmp_path / "a")) == []

    def test_streams_of_a_mix_move_apart(self, data, tmp_path):
        state = saved(mix([read_text(data / "a"), read_text(data / "c")]))
        shutil.move(data / "c", tmp_path / "elsewhere")
        touch(tmp_path / "elsewhere" / "a")
        assert check(state, mix([read_text(data / "a"), read_text(tmp_path / "elsewhere")])) == []

    def test_so_many_that_only_their_number_is_kept(self, tmp_path):
        write(tmp_path, **{f"{i:03}": "x\n" for i in range(101)})
        state = saved(read_text(tmp_path))
        assert state["files"] == 101
        assert check(state, read_text(tmp_path)) == []


class TestFormerStates:
    def test_fit_the_same_files(self, data):
        assert check(saved(read_text(data), former=True), read_text(data)) == []

    def test_fit_a_file_that_was_touched_with_a_warning(self, data):
        state = saved(read_text(data), former=True)
        touch(data / "b")
        [warning] = check(state, read_text(data))
        assert warning.startswith(f"{data / 'b'} was last changed at another time than the state says. ")

    def test_fit_copies_with_one_warning(self, data, tmp_path):
        state = saved(read_text(data), former=True)
        shutil.copytree(data, tmp_path / "copy", copy_function=shutil.copyfile)
        for path in ("a", "b", "c/a"):
            touch(tmp_path / "copy" / path)
        [warning] = check(state, read_text(tmp_path / "copy"))
        assert warning.startswith(f"{tmp_path / 'copy' / 'a'} and 2 other files were last changed")

    def test_of_a_mix_fit_though_they_list_all_files_twice(self, data):
        stream = mix([read_text(data / "a"), read_text(data / "b")])
        state = saved(stream)
        for part in state["mix"][2]:
            part["files"] = [file[:-FORMER] for file in part["files"]]
        state["files"] = [file for part in state["mix"][2] for file in part["files"]]
        assert check(state, stream) == []


class TestOtherFiles:
    def refused(self, state, stream):
        with pytest.raises(
            StateError, match="does not fit this loader, for the data is not what it was taken with"
        ) as raised:
            check(state, stream)
        told = str(raised.value)
        assert told.endswith(". Put it back as it was, or start the epoch anew, without the state.")
        assert len(told) < 500
        return told

    def test_another_size(self, data):
        state = saved(read_text(data))
        write(data, a="1\n2\n3\n")
        assert f"{data / 'a'} had 4 bytes, and has 6 bytes." in self.refused(state, read_text(data))

    def test_other_content_of_the_same_size(self, data):
        touch(data / "b")
        state = saved(read_text(data))
        write(data, b="3\n5\n")
        touch(data / "b", 2000)
        assert f"{data / 'b'} still has 4 bytes, but others." in self.refused(state, read_text(data))

    def test_one_more(self, data):
        state = saved(read_text(data))
        write(data, d="6\n")
        assert "there were 3 files, and there are 4 (d is new)." in self.refused(state, read_text(data))

    def test_one_less_and_one_that_is_new(self, data):
        state = saved(read_text([data / "a", data / "b", data / "c"]))
        write(data, d="6\n")
        told = self.refused(state, read_text([data / "a", data / "d"]))
        assert "there were 3 files, and there are 2 (a is missing, d is new)." in told

    def test_the_same_ones_in_another_order(self, data):
        state = saved(read_text([data / "a", data / "b"]))
        told = self.refused(state, read_text([data / "b", data / "a"]))
        assert f"file 1 of 2 was {data / 'a'}, and is {data / 'b'}." in told

    def test_many(self, tmp_path):
        write(tmp_path, **{f"{i:03}": "x\n" for i in range(101)})
        state = saved(read_text(tmp_path))
        (tmp_path / "000").unlink()
        assert "there were 101 files, and there are 100." in self.refused(state, read_text(tmp_path))

    def test_in_a_part_of_a_mix(self, data):
        state = saved(mix([read_text(data / "a"), read_text(data / "b")]))
        write(data, b="3\n")
        told = self.refused(state, mix([read_text(data / "a"), read_text(data / "b")]))
        assert f"{data / 'b'} had 4 bytes, and has 2 bytes." in told


def test_another_number_of_mixed_streams_is_named(data):
    state = saved(mix([read_text(data / "a"), read_text(data / "b")]))
    with pytest.raises(StateError, match="taken with mixed streams = 2, and here it is 0"):
        check(state, read_text(data / "a"))


def test_other_weights_of_a_mix_fit_but_for_those_of_a_mix_in_a_mix(data):
    streams = [read_text(data / "a"), read_text(data / "b")]
    assert check(saved(mix(streams, weights=[1, 2])), mix(streams, weights=[2, 1])) == []
    with pytest.raises(StateError, match="taken with weights = "):
        check(saved(mix([mix(streams, weights=[1, 2])])), mix([mix(streams, weights=[2, 1])]))


@pytest.mark.parametrize("other", [{"stop": "all"}, {"draw": "even"}, {"seed": 3}])
def test_another_way_to_mix_is_refused(data, other):
    streams = [read_text(data / "a"), read_text(data / "b")]
    with pytest.raises(StateError, match="taken with mix = "):
        check(saved(mix(streams)), mix(streams, **other))


def test_a_query_is_told_by_its_version(tmp_path):
    def read(query):
        return read_sql(f"sqlite:///{tmp_path}/x.db", query, key="id")

    with closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
        database.execute("CREATE TABLE data (id INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO data VALUES (?)", [(i,) for i in range(5)])
    state = saved(read("SELECT id FROM data"))
    assert check(state, read("SELECT id FROM data")) == []
    with pytest.raises(StateError, match=r"file 1 of 1 was .*SELECT id FROM data, and is .*SELECT id FROM data WHERE"):
        check(state, read("SELECT id FROM data WHERE id < 3"))
    with closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
        database.execute("INSERT INTO data VALUES (5)")
    with pytest.raises(StateError, match=r"SELECT id FROM data was of version \w+, and .* is of version \w+\."):
        check(state, read("SELECT id FROM data"))


class TestStores:
    """Whose versions are those of the content."""

    def test_the_same_version(self):
        assert compare_files([["s3://b/x", 4, '"e"']], [["s3://c/d/x", 4, '"e"', None]]) == []

    def test_another_version_in_the_same_place(self):
        with pytest.raises(StateError, match=r's3://b/x was of version "e", and is of version "f"'):
            compare_files([["s3://b/x", 4, '"e"']], [["s3://b/x", 4, '"f"', None]])

    def test_another_version_in_another_place_may_be_a_copy(self):
        assert compare_files([["/data/x", 4, "17", "ab"]], [["s3://b/x", 4, '"f"', None]]) == ["s3://b/x"]

    def test_an_unknown_size(self):
        with pytest.raises(StateError, match="https://b/x was of version None, and https://c/x is of version None"):
            compare_files([["https://b/x", None, None]], [["https://c/x", None, None, None]])
        assert compare_files([["https://b/x", None, "e"]], [["https://b/x", None, "e", None]]) == []


class TestFingerprints:
    LENGTH = 300_000

    def of(self, path, content):
        path.write_bytes(content)
        touch(path, 1000 + sum(content) % 1000)  # another version
        return fingerprint(stat_local(str(path)))

    @pytest.mark.parametrize("at", [0, (1 << 16) - 1, -(1 << 16), -1])
    def test_both_ends_count(self, tmp_path, at):
        content = bytearray(self.LENGTH)
        before = self.of(tmp_path / "x", bytes(content))
        content[at] = 1
        assert before != self.of(tmp_path / "x", bytes(content))

    def test_a_short_file_counts_whole(self, tmp_path):
        content = bytearray(100_000)
        before = self.of(tmp_path / "x", bytes(content))
        content[70_000] = 1
        assert before != self.of(tmp_path / "x", bytes(content))

    def test_what_cannot_be_read_has_none(self, tmp_path):
        path = tmp_path / "x"
        path.write_bytes(b"ab")
        listed = stat_local(str(path))
        path.unlink()
        assert fingerprint(listed) is None

    def test_nor_has_what_was_changed_since(self, tmp_path):
        path = tmp_path / "x"
        path.write_bytes(b"ab")
        listed = stat_local(str(path))
        path.write_bytes(b"abc")
        assert fingerprint(listed) is None

    def test_a_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        assert fingerprint(stat_local(str(tmp_path / "pipe"))) is None
