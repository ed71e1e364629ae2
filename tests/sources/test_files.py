"""Listing and opening files: local ones, in memory, on web servers, in S3; nothing is lost or doubled by faults."""

from __future__ import annotations

import io
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, Stream, read_text
from headrace.base.errors import ChangedFileError, MissingExtraError, RetriesExhaustedError
from headrace.sources import files
from headrace.sources.compression import is_compressed
from headrace.sources.files import can_seek, is_local, list_files, natural_key, open_range, open_stream
from headrace.sources.options import FileOptions
from headrace.sources.retry import Retries
from headrace.sources.source import FileVersion
from headrace.sources.text import TextSource
from tests.sources.reading import all_rows
from tests.sources.servers import FAULTS, closes_are_done, fsspec_running, s3_server, web_server

__all__ = ["fsspec_running", "s3_server", "web_server"]  # fixtures

AT_ONCE = FileOptions(retries=Retries(attempts=3, first_delay_s=0, longest_delay_s=0))
LINES = [f"line {i} " + "x" * (i % 50) for i in range(3000)]
CONTENT = "\n".join(LINES).encode()


def names(found, folder):
    return [file.path.removeprefix(f"{folder}/") for file in found]


class TestListing:
    @pytest.fixture
    def tree(self, tmp_path):
        for name in ("b/part-10.txt", "b/part-2.txt", "a.txt", "b/c/1.txt", ".hidden", ".git/x.txt", "b/.x"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        return tmp_path

    def test_a_directory_stands_for_all_files_below_it(self, tree):
        assert names(list_files(tree), tree) == ["a.txt", "b/c/1.txt", "b/part-2.txt", "b/part-10.txt"]

    def test_globs(self, tree):
        assert names(list_files(f"{tree}/b/*.txt"), tree) == ["b/part-2.txt", "b/part-10.txt"]
        assert names(list_files(f"{tree}/**/[12].txt"), tree) == ["b/c/1.txt"]
        assert names(list_files(f"{tree}/*"), tree) == ["a.txt"]

    def test_paths_keep_their_order(self, tree):
        given_paths = [tree / "b/part-10.txt", f"file://{tree}/a.txt", str(tree / "b/c")]
        assert names(list_files(given_paths), tree) == ["b/part-10.txt", "a.txt", "b/c/1.txt"]
        assert names(list_files(iter(given_paths)), tree) == ["b/part-10.txt", "a.txt", "b/c/1.txt"]

    def test_a_name_that_looks_like_a_glob(self, tmp_path):
        (tmp_path / "a[1].txt").write_text("x")
        assert names(list_files(tmp_path / "a[1].txt"), tmp_path) == ["a[1].txt"]

    def test_links_are_followed_but_not_in_circles(self, tree):
        (tree / "b/c/back").symlink_to(tree / "b")
        (tree / "d").symlink_to(tree / "b/c")
        os.mkfifo(tree / "pipe")
        assert "d/1.txt" in names(list_files(tree), tree)
        assert names(list_files(tree / "b"), tree) == ["b/c/1.txt", "b/part-2.txt", "b/part-10.txt"]
        (tree / "b/gone").symlink_to(tree / "nowhere")
        with pytest.raises(FileNotFoundError, match="gone"):
            list_files(tree / "b")

    @pytest.mark.parametrize("name", ["_SUCCESS", "_temporary/0/part.txt", "b/_committed_1", "b/.part.crc"])
    def test_names_that_pyarrow_ignores_are_left_out_unless_they_are_given(self, tree, name):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("not data")
        assert names(list_files(tree), tree) == ["a.txt", "b/c/1.txt", "b/part-2.txt", "b/part-10.txt"]
        assert names(list_files(tree / name), tree) == [name]
        assert names(list_files(f"{tree}/b/_*1"), tree) == [name] if name == "b/_committed_1" else True

    def test_a_directory_below_a_hidden_one(self, tmp_path):
        (tmp_path / "_data/.x").mkdir(parents=True)
        (tmp_path / "_data/.x/a.txt").write_text("a")
        assert names(list_files(tmp_path / "_data/.x"), tmp_path) == ["_data/.x/a.txt"]

    def test_size_and_version(self, tree):
        (file,) = list_files(tree / "a.txt")
        assert file == FileVersion(str(tree / "a.txt"), 5, str((tree / "a.txt").stat().st_mtime_ns))

    def test_everything_that_is_missing_is_named(self, tree):
        (tree / "empty").mkdir()
        with pytest.raises(FileNotFoundError, match=r"3 paths match no file: .*no\.txt.*/\*\.csv.*empty"):
            list_files([tree / "no.txt", tree / "a.txt", f"{tree}/*.csv", tree / "empty"])

    def test_why_there_is_none_is_told(self, tree):
        (tree / "empty").mkdir()
        for path in (tree / "no.txt", f"{tree}/*.csv"):
            with pytest.raises(FileNotFoundError, match=r"'\. There is no such file or directory\.$"):
                list_files(path)
        with pytest.raises(FileNotFoundError, match=r"empty'\. A directory must have files that are not hidden: .*'_'"):
            list_files(tree / "empty")

    def test_a_file_twice(self, tree):
        with pytest.raises(ValueError, match=r"a\.txt' more than once"):
            list_files([tree / "a.txt", f"{tree}/*.txt"])

    def test_nothing_at_all(self):
        with pytest.raises(ValueError, match="At least one path"):
            list_files([])

    @settings(deadline=None)
    @given(st.permutations(["a", "a1", "a2", "a10", "a10b", "a10b2", "b", "1", "2", "10"]))
    def test_natural_order(self, shuffled):
        expected = ["1", "2", "10", "a", "a1", "a2", "a10", "a10b", "a10b2", "b"]
        assert sorted(shuffled, key=natural_key) == expected

    def test_without_fsspec(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "fsspec.core", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[remote\]'"):
            list_files("memory://x")

    @pytest.mark.parametrize(
        ("path", "local"),
        [("/a", True), ("a.txt", True), ("file:///a", True), ("s3://a/b", False), ("simplecache::s3://a", False)],
    )
    def test_what_is_local(self, path, local):
        assert is_local(path) is local

    def test_what_is_compressed_by_name(self):
        names = ["a.gz", "a.TAR.ZST", "https://x/a.xz?token=1", "a.txt", "gz", "https://x/a?b.gz"]
        assert list(map(is_compressed, names)) == [True, True, True, False, False, False]


class TestSpecialFiles:
    def test_a_pipe_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match=r"pipe' is a pipe, .*Write it to a file; .*shard=\"dispatch\""):
            list_files(tmp_path / "pipe")

    def test_devices_and_sockets_are_refused(self, tmp_path):
        with pytest.raises(OSError, match="is a device"):
            list_files("/dev/zero")
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(str(tmp_path / "s"))
            with pytest.raises(OSError, match="is a socket"):
                list_files(tmp_path / "s")

    def test_a_pipe_can_be_read_as_the_error_says(self, tmp_path):
        path = tmp_path / "pipe"
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_text, args=("one\ntwo\nthree\n",))
        writer.start()

        def lines():
            with open(path) as opened:
                yield from opened

        stream = Stream.from_iterable(lines, shard="dispatch").map(str.strip)
        assert list(DataLoader(stream, batch_size=2, collate_fn=list)) == [["one", "two"], ["three"]]
        writer.join()

    @pytest.mark.skipif(not os.path.exists("/proc/cpuinfo"), reason="needs /proc")
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_file_whose_size_is_not_known_is_read(self, workers):
        with open("/proc/filesystems") as opened:
            expected = opened.read().splitlines()
        assert expected
        with DataLoader(read_text("/proc/filesystems"), batch_size=None, num_workers=workers, shard=None) as loader:
            assert list(loader) == expected

    def test_standard_input_from_a_file(self, tmp_path):
        (tmp_path / "in.txt").write_text("one\ntwo\n")
        code = "import headrace as h; print(list(h.DataLoader(h.read_text('/dev/stdin'), batch_size=2, num_workers=1)))"
        with open(tmp_path / "in.txt") as given:
            done = subprocess.run([sys.executable, "-c", code], stdin=given, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[['one', 'two']]"

    def test_standard_input_from_a_pipe(self):
        code = "import headrace as h; print(list(h.read_text('/dev/stdin')))"
        done = subprocess.run([sys.executable, "-c", code], input="one\n", capture_output=True, text=True, check=False)
        assert "'/dev/stdin' is a pipe" in done.stderr

    def test_a_pipe_in_the_place_of_a_listed_file(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("one\n")
        source = TextSource(path)
        source.blocks()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(ChangedFileError, match="not a regular file any more"):
            all_rows(source)


class TestMemory:
    @pytest.fixture
    def store(self):
        fsspec = pytest.importorskip("fsspec")
        store = fsspec.filesystem("memory")
        store.pipe({"/data/b/2.txt": b"two", "/data/b/10.txt": b"ten", "/data/.x/1.txt": b"", "/data/a.gz": b"\x1f"})
        yield store
        store.rm("/data", recursive=True)

    @pytest.mark.usefixtures("store")
    def test_listing(self):
        names = ["memory:///data/a.gz", "memory:///data/b/2.txt", "memory:///data/b/10.txt"]
        assert [file.path for file in list_files("memory://data")] == names
        assert [file.path for file in list_files("memory://data/b/*.txt")] == names[1:]
        with pytest.raises(FileNotFoundError, match="memory://data/none"):
            list_files(["memory://data/none", "memory://data/a.gz"])

    @pytest.mark.usefixtures("store")
    @pytest.mark.parametrize("path", ["memory://data/b/2.txt", "memory://data/b/[2].txt"])
    def test_a_listed_file_is_the_same_when_it_is_opened(self, path):
        (file,) = list_files(path)
        with open_range(file, 0, None) as opened:
            assert opened.read() == b"two"

    def test_a_file_that_has_changed(self, store):
        (file,) = list_files("memory://data/b/2.txt")
        with open_range(file, 1, None) as opened:
            assert opened.read() == b"wo"
        store.pipe("/data/b/2.txt", b"three")
        with pytest.raises(ChangedFileError, match="its size was 3, and is 5"):
            open_range(file, 0, None)


class TestAnyStore:
    """What holds for a local file holds for one on a web server."""

    @settings(deadline=None)
    @given(data=st.data())
    def test_seeks_and_reads_like_a_file_in_memory(self, web_server, fsspec_running, data):
        plain = io.BytesIO(CONTENT)
        web_server.put("/a.txt", CONTENT)
        (file,) = list_files(web_server.url + "/a.txt")
        stop = data.draw(st.none() | st.integers(0, len(CONTENT)))
        with open_range(file, 0, stop, AT_ONCE) as opened:
            for _ in range(data.draw(st.integers(1, 4))):
                place = data.draw(st.integers(0, len(CONTENT) + 5))
                n = data.draw(st.integers(0, 200_000))
                assert opened.seek(place) == plain.seek(place)
                assert opened.read(n) == plain.read(n)


class TestRegisteredProtocols:
    """gs:// and all others are whatever fsspec has registered for them."""

    @pytest.fixture
    def registry(self, monkeypatch):
        registry = pytest.importorskip("fsspec.registry")
        monkeypatch.setattr(registry, "_registry", dict(registry._registry))
        monkeypatch.setattr(registry, "registry", registry._registry)
        return registry

    def test_a_store_that_is_registered_for_gs(self, registry):
        from fsspec.implementations.memory import MemoryFileSystem

        class Buckets(MemoryFileSystem):
            protocol = ("gs", "gcs")
            store: ClassVar = {}
            pseudo_dirs: ClassVar = [""]

            @classmethod
            def _strip_protocol(cls, path):
                return super()._strip_protocol(path.replace("gs://", "memory://"))

        registry._registry["gs"] = Buckets
        Buckets().pipe({"/bucket/a.txt": CONTENT, "/bucket/b/c.txt": b"last"})
        files = list_files("gs://bucket")
        assert [file.path.split("bucket")[1] for file in files] == ["/a.txt", "/b/c.txt"]
        assert all_rows(TextSource("gs://bucket", FileOptions(block_bytes=20_000))) == [*LINES, "last"]

    def test_what_a_store_needs_is_named_where_it_is_missing(self, registry, monkeypatch):
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        registry._registry.pop("gs", None)
        with pytest.raises(MissingExtraError, match=r"gs://bucket/x needs more than fsspec.*gcsfs.*headrace\[remote\]"):
            list_files("gs://bucket/x")


@pytest.mark.usefixtures("fsspec_running")
class TestWeb:
    @pytest.fixture
    def server(self, web_server):
        web_server.faults.clear()
        web_server.requests.clear()
        yield web_server
        closes_are_done()

    def read(self, url, block_bytes=20_000, attempts=3):
        options = FileOptions(block_bytes=block_bytes, retries=Retries(attempts, 0, 0))
        return all_rows(TextSource(url, options))

    def test_a_file_is_cut_if_the_server_knows_ranges(self, server):
        url = server.put("/a.txt", CONTENT)
        (file,) = list_files(url)
        assert file == FileVersion(url, len(CONTENT), '"1"')
        assert self.read(url) == LINES
        assert can_seek(file, AT_ONCE) is server.knows_ranges
        source = TextSource(url, FileOptions(block_bytes=20_000))
        assert (len(source.blocks()) > 1) is server.knows_ranges

    @pytest.mark.parametrize("fault", FAULTS)
    def test_one_fault(self, server, fault):
        url = server.put("/a.txt", CONTENT)
        server.faults = [None, fault]
        if fault == "short" and not server.knows_ranges:  # a whole answer that is shorter is another file
            with pytest.raises(ChangedFileError, match="size was 105389, and is 52694"):
                self.read(url)
        else:
            assert self.read(url) == LINES
        assert server.faults == []

    def test_many_faults(self, server):
        url = server.put("/a.txt", CONTENT)
        choose = random.Random(0)
        faults = [*FAULTS, None] if server.knows_ranges else [*(set(FAULTS) - {"short"}), None]
        server.faults = [choose.choice(sorted(faults, key=str)) for _ in range(12)]
        assert self.read(url, attempts=14) == LINES

    @pytest.mark.parametrize("fault", ["unavailable", "reset", "too many requests"])
    def test_faults_without_end(self, server, fault):
        url = server.put("/a.txt", CONTENT)
        (file,) = list_files(url)
        server.faults = [fault] * 100
        with pytest.raises((RetriesExhaustedError, ChangedFileError), match="3 attempts"):
            self.give_up(file)
        server.faults = []

    def give_up(self, file):
        with open_range(file, len(CONTENT) - 1, None, AT_ONCE) as opened:
            opened.read()

    def test_what_has_changed_is_noticed(self, server):
        url = server.put("/a.txt", CONTENT)
        (file,) = list_files(url)
        server.put("/a.txt", CONTENT[::-1], '"2"')
        with open_range(file, 0, None, AT_ONCE) as opened, pytest.raises(ChangedFileError, match="version was"):
            opened.read(1)
        server.put("/a.txt", CONTENT[:-1])
        with open_range(file, 0, None, AT_ONCE) as opened, pytest.raises(ChangedFileError, match="size was"):
            opened.read(1)

    def test_what_is_not_there_is_not_tried_again(self, server):
        with pytest.raises(FileNotFoundError, match="/none"):
            list_files(server.url + "/none", AT_ONCE)
        assert [status for *_, status in server.requests] == [404, 404]

    def test_a_listing_is_tried_again(self, server, monkeypatch):
        url = server.put("/a.txt", CONTENT)
        look, tries = files._find, itertools.count()

        def sometimes(*args):
            if next(tries) < 2:
                raise TimeoutError
            return look(*args)

        monkeypatch.setattr(files, "_find", sometimes)
        assert len(list_files(url, AT_ONCE)) == 1
        assert next(tries) == 3

    def test_a_stream_is_decompressed(self, server):
        import gzip

        url = server.put("/a.txt.gz", gzip.compress(CONTENT))
        with open_stream(url, AT_ONCE) as stream:
            assert stream.read() == CONTENT
        assert self.read(url) == LINES


@pytest.mark.usefixtures("fsspec_running")
class TestS3:
    @pytest.fixture
    def storage(self, s3_server):
        s3fs = pytest.importorskip("s3fs")
        s3_server.faults.clear()
        store = s3fs.S3FileSystem(endpoint_url=s3_server.direct_url)
        if not store.exists("bucket"):
            store.mkdir("bucket")
        store.pipe({"bucket/b/10.txt": b"ten", "bucket/b/2.txt": CONTENT, "bucket/b/.x": b""})
        yield {"endpoint_url": s3_server.url, "config_kwargs": {"retries": {"max_attempts": 0}}}
        s3fs.S3FileSystem.clear_instance_cache()

    def read(self, storage, attempts=3):
        options = FileOptions(block_bytes=20_000, storage_options=storage, retries=Retries(attempts, 0, 0))
        return all_rows(TextSource("s3://bucket/b/2.txt", options))

    def test_listing(self, storage):
        found = list_files("s3://bucket/b", FileOptions(storage_options=storage))
        assert [file.path for file in found] == ["s3://bucket/b/2.txt", "s3://bucket/b/10.txt"]
        assert [file.path for file in list_files("s3://bucket/*/1*", FileOptions(storage_options=storage))] == [
            "s3://bucket/b/10.txt"
        ]
        assert found[0].size == len(CONTENT)
        assert found[0] == list_files("s3://bucket/b/2.txt", FileOptions(storage_options=storage))[0]
        with pytest.raises(FileNotFoundError, match="s3://bucket/none"):
            list_files("s3://bucket/none", FileOptions(storage_options=storage))

    def test_lines(self, storage):
        assert self.read(storage) == LINES

    @pytest.mark.parametrize("fault", ["unavailable", "reset", "short"])
    def test_faults(self, storage, s3_server, fault):
        s3_server.faults = [None, fault, None, fault, fault]
        assert self.read(storage) == LINES
        assert s3_server.faults == []

    def test_what_has_changed_is_noticed(self, storage, s3_server):
        import s3fs

        (file,) = list_files("s3://bucket/b/2.txt", FileOptions(storage_options=storage))
        s3fs.S3FileSystem(endpoint_url=s3_server.direct_url).pipe("bucket/b/2.txt", CONTENT[::-1])
        with pytest.raises(ChangedFileError, match="version was"):
            open_range(file, 0, None, FileOptions(storage_options=storage, retries=AT_ONCE.retries))
