"""The cache of what was read from stores: shared by processes, checked, limited, and never in the way."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
import zlib
from pathlib import Path

import pytest

from headrace import read_text
from headrace.base.errors import ChangedFileError, RetriesExhaustedError
from headrace.sources import cache as cache_module
from headrace.sources.cache import Cache, CachedRanges, CacheFolder, find_cache, size_in_bytes
from headrace.sources.files import list_files, open_range
from headrace.sources.options import FileOptions
from headrace.sources.retry import Retries
from headrace.sources.source import FileVersion
from headrace.sources.text import TextSource
from tests.sources.reading import all_rows
from tests.sources.servers import closes_are_done, fsspec_running, s3_server, web_server

__all__ = ["fsspec_running", "s3_server", "web_server"]  # fixtures

LINES = [f"line {i} " + "x" * (i % 50) for i in range(3000)]
CONTENT = "\n".join(LINES).encode()
BLOCK = 10_000
N_BLOCKS = -(-len(CONTENT) // BLOCK)
FILE = FileVersion("s3://bucket/key", len(CONTENT), "1")


class Store:
    """A file in memory that counts what is asked of it."""

    def __init__(self, content=CONTENT):
        self.content = content
        self.asked = []

    def fetch(self, start, stop):
        self.asked.append((start, stop))
        return self.content[start:stop]

    def check(self):
        return FILE

    def close(self):
        pass


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", free=0, block_bytes=BLOCK)


def blocks_in(cache):
    return sorted(Path(cache.folder).glob("??/*"))


def ranges(cache, store, file=FILE):
    return CachedRanges(file, cache, lambda: store)


def read_all(cache, store, file=FILE):
    return ranges(cache, store, file).fetch(0, file.size)


class TestReading:
    def test_any_range_is_what_the_store_has(self, cache):
        store = Store()
        for start, stop in itertools.product([0, 1, BLOCK - 1, BLOCK, 25_000], [0, BLOCK, BLOCK + 1, len(CONTENT)]):
            assert ranges(cache, store).fetch(start, stop) == CONTENT[start:stop]

    def test_only_what_is_asked_for_is_downloaded_and_only_once(self, cache):
        store = Store()
        assert ranges(cache, store).fetch(BLOCK + 1, BLOCK + 3) == CONTENT[BLOCK + 1 : BLOCK + 3]
        assert store.asked == [(BLOCK, 2 * BLOCK)]
        assert read_all(cache, store) == CONTENT
        assert len(store.asked) == N_BLOCKS
        assert read_all(cache, Store(b"")) == CONTENT

    def test_a_store_is_not_even_opened_if_nothing_is_missing(self, cache):
        read_all(cache, Store())
        again = CachedRanges(FILE, cache, lambda: pytest.fail("opened"))
        assert again.fetch(0, len(CONTENT)) == CONTENT

    @pytest.mark.parametrize("other", [("s3://bucket/other", "1"), ("s3://bucket/key", "2")])
    def test_another_file_and_another_version_are_not_the_same(self, cache, other):
        read_all(cache, Store())
        path, version = other
        store = Store(CONTENT[::-1])
        assert read_all(cache, store, FileVersion(path, len(CONTENT), version)) == CONTENT[::-1]

    def test_an_empty_file(self, cache):
        assert read_all(cache, Store(b""), FileVersion("s3://bucket/empty", 0, "1")) == b""

    def test_errors_of_the_store_come_through_and_nothing_is_kept(self, cache):
        class Broken(Store):
            def fetch(self, start, stop):
                raise RetriesExhaustedError("gave up")

        with pytest.raises(RetriesExhaustedError, match="gave up"):
            read_all(cache, Broken())
        assert blocks_in(cache) == []
        assert read_all(cache, Store()) == CONTENT

    def test_a_file_that_changes_while_it_is_read_is_not_kept(self, tmp_path):
        fsspec = pytest.importorskip("fsspec")
        store = fsspec.filesystem("memory")
        store.pipe("/cached/c.txt", CONTENT)
        (file,) = list_files("memory://cached/c.txt")
        cache = Cache(tmp_path, block_bytes=BLOCK)
        with open_range(file, 0, 0, FileOptions(cache=cache)) as opened:
            assert opened.read(5) == CONTENT[:5]
            store.pipe("/cached/c.txt", CONTENT[::-1])
            opened.seek(9 * BLOCK)
            with pytest.raises(ChangedFileError, match="has changed since it was listed"):
                opened.read(5)
        assert 0 < len(blocks_in(cache)) < 9


class TestDamage:
    @pytest.mark.parametrize("harm", ["flip", "cut", "grow", "empty", "swap"])
    def test_a_damaged_block_is_fetched_again(self, cache, harm):
        read_all(cache, Store())
        victim, other = blocks_in(cache)[2:4]
        stored = victim.read_bytes()
        damaged = {
            "flip": stored[:50] + bytes([stored[50] ^ 1]) + stored[51:],
            "cut": stored[:-1],
            "grow": stored + b"x",
            "empty": b"",
            "swap": other.read_bytes(),
        }
        victim.write_bytes(damaged[harm])
        store = Store()
        assert read_all(cache, store) == CONTENT
        assert len(store.asked) == 1
        assert victim.read_bytes() == stored

    @pytest.mark.parametrize("name", ["a block", "unfinished"])
    def test_a_pipe_in_the_folder_hangs_nobody(self, cache, name):
        store = Store()
        read_all(cache, store)
        victim = blocks_in(cache)[0] if name == "a block" else Path(cache.folder, name)
        blocks_in(cache)[0].unlink()
        os.mkfifo(victim)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert read_all(cache, store) == CONTENT
        assert read_all(cache, store) == CONTENT

    def test_a_damaged_ledger_is_made_anew(self, cache):
        read_all(cache, Store())
        Path(cache.folder, "ledger").write_text("what?")
        read_all(cache, Store(), FileVersion("s3://bucket/b", len(CONTENT), "1"))
        assert int(Path(cache.folder, "ledger").read_text()) == sum(path.stat().st_size for path in blocks_in(cache))


class TestLimits:
    def test_what_was_used_longest_ago_goes_first(self, tmp_path):
        cache = Cache(tmp_path, limit=4 * (BLOCK + 4), free=0, block_bytes=BLOCK)
        store = Store()
        reader = ranges(cache, store)
        for number in (0, 1, 2, 3):
            reader.fetch(number * BLOCK, number * BLOCK + 1)
            (path,) = tmp_path.glob(f"??/*-{number}")
            os.utime(path, (number, number))  # the system's own times are too coarse for a test
        ranges(cache, store).fetch(0, 1)  # used again
        store.asked.clear()
        reader.fetch(4 * BLOCK, 4 * BLOCK + 1)
        assert {path.name.rpartition("-")[2] for path in blocks_in(cache)} == {"3", "0", "4"}
        ranges(cache, store).fetch(0, 1)
        assert store.asked == [(4 * BLOCK, 5 * BLOCK)]

    def test_the_limit_is_never_passed(self, tmp_path):
        limit = 3 * (BLOCK + 4) + 10
        cache = Cache(tmp_path, limit=limit, free=0, block_bytes=BLOCK)
        for number in range(5):
            file = FileVersion(f"s3://bucket/{number}", len(CONTENT), "1")
            reader = ranges(cache, Store(), file)
            for start in range(0, len(CONTENT), BLOCK):
                assert reader.fetch(start, start + 1) == CONTENT[start : start + 1]
                assert 0 < sum(path.stat().st_size for path in blocks_in(cache)) <= limit

    def test_a_nearly_full_disk_is_left_alone(self, tmp_path):
        cache = Cache(tmp_path, free="1000 TB", block_bytes=BLOCK)
        with pytest.warns(UserWarning, match="there is no room for a block of 10004 bytes"):
            assert read_all(cache, Store()) == CONTENT
        assert blocks_in(cache) == []

    def test_a_disk_that_got_full_gets_space_back(self, cache, monkeypatch):
        read_all(cache, Store())
        usage = cache_module.shutil.disk_usage(cache.folder)
        cache.free_bytes = 10 * BLOCK
        monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda _: usage._replace(free=8 * BLOCK))
        read_all(cache, Store(), FileVersion("s3://bucket/b", 1, "1"))
        kept = sum(path.stat().st_size for path in blocks_in(cache))
        assert 0 < kept <= len(CONTENT) + 4 * N_BLOCKS - 2 * BLOCK

    def test_who_is_reading_is_not_disturbed(self, cache):
        read_all(cache, Store())
        with blocks_in(cache)[0].open("rb") as opened:
            for path in blocks_in(cache):
                path.unlink()
            assert len(opened.read()) == BLOCK + 4
        assert read_all(cache, Store()) == CONTENT


class TestTrouble:
    def test_a_folder_that_cannot_be_made_is_told_once(self, tmp_path):
        (tmp_path / "file").write_text("")
        cache = Cache(tmp_path / "file" / "cache", block_bytes=BLOCK)
        with pytest.warns(UserWarning, match="cannot be used as it should.*read from their store"):
            assert read_all(cache, Store()) == CONTENT
        assert read_all(cache, Store()) == CONTENT  # and any warning would be an error

    def test_a_disk_that_refuses_to_be_written_to(self, cache, monkeypatch):
        def refuse(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(cache_module.os, "replace", refuse)
        with pytest.warns(UserWarning, match="No space left"):
            assert read_all(cache, Store()) == CONTENT
        assert blocks_in(cache) == []
        assert not Path(cache.folder, "unfinished").exists()

    def test_a_lock_that_is_never_let_go(self, cache, monkeypatch):
        monkeypatch.setattr(cache_module, "_PATIENCE_S", 0.05)
        folder = CacheFolder(cache)
        name = f"{ranges(cache, Store())._prefix}-0"
        with folder.claim(name), pytest.warns(UserWarning, match=r"locked for 0 s"):
            assert ranges(cache, Store()).fetch(0, 5) == CONTENT[:5]
        assert blocks_in(cache) == []

    def test_a_store_without_versions(self, tmp_path):
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe("/cached/a.txt", CONTENT)
        options = FileOptions(cache=Cache(tmp_path, block_bytes=BLOCK))
        file = FileVersion("memory://cached/a.txt", len(CONTENT), None)
        with (
            pytest.warns(UserWarning, match="reports no version of memory://cached"),
            open_range(file, 0, None, options) as opened,
        ):
            assert opened.read() == CONTENT
        assert list(tmp_path.iterdir()) == []


class GatedStore(Store):
    """Tells by a pipe that a download has begun, and goes on when it is told to."""

    def __init__(self, begun, go_on):
        super().__init__()
        self.begun, self.go_on = begun, go_on

    def fetch(self, start, stop):
        self.begun.send(start)
        self.go_on.recv()
        return super().fetch(start, stop)


FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork")  # Python warns of threads, which the children do not use


def read_one_block(cache, store, result):
    result.send_bytes(ranges(cache, store).fetch(0, BLOCK))


def die_before_renaming(cache):
    cache_module.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    read_all(cache, Store())


def ended(process):
    process.join()
    code = process.exitcode
    process.close()
    return code


class TestProcesses:
    def test_one_downloads_and_the_other_waits(self, cache):
        begun, tell_begun = FORK.Pipe(False)
        wait_to_go_on, go_on = FORK.Pipe(False)
        results, send = FORK.Pipe(False)
        with begun, tell_begun, wait_to_go_on, go_on, results, send:
            store = GatedStore(tell_begun, wait_to_go_on)
            processes = [FORK.Process(target=read_one_block, args=(cache, store, send)) for _ in range(2)]
            for process in processes:
                process.start()
            assert begun.recv() == 0
            go_on.send(None)
            assert results.recv_bytes() == results.recv_bytes() == CONTENT[:BLOCK]
            assert [ended(process) for process in processes] == [0, 0]
            assert not begun.poll()  # nobody has asked the store again

    def test_one_that_is_killed_in_the_middle_of_a_download(self, cache):
        begun, tell_begun = FORK.Pipe(False)
        never, never_told = FORK.Pipe(False)
        with begun, tell_begun, never, never_told:
            store = GatedStore(tell_begun, never)
            process = FORK.Process(target=read_one_block, args=(cache, store, tell_begun))
            process.start()
            begun.recv()
            os.kill(process.pid, signal.SIGKILL)
            assert ended(process) == -signal.SIGKILL
        store = Store()
        assert read_all(cache, store) == CONTENT
        assert len(store.asked) == N_BLOCKS

    def test_one_that_is_killed_before_a_block_has_its_name(self, cache):
        process = FORK.Process(target=die_before_renaming, args=(cache,))
        process.start()
        assert ended(process) == -signal.SIGKILL
        assert blocks_in(cache) == []
        store = Store()
        assert read_all(cache, store) == CONTENT
        assert len(store.asked) == len(blocks_in(cache)) == N_BLOCKS
        assert not Path(cache.folder, "unfinished").exists()

    def test_threads_and_processes_that_throw_away_each_others_blocks(self, tmp_path):
        cache = Cache(tmp_path, limit=2 * (BLOCK + 4), free=0, block_bytes=BLOCK)
        processes = [FORK.Process(target=read_many_times, args=(cache,)) for _ in range(2)]
        for process in processes:
            process.start()
        threads = [threading.Thread(target=read_many_times, args=(cache,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [ended(process) for process in processes] == [0, 0]
        assert sum(path.stat().st_size for path in blocks_in(cache)) <= cache.limit_bytes

    def test_a_child_that_was_forked_during_a_download_holds_no_lock(self, cache):
        never, never_told = FORK.Pipe(False)
        folder = CacheFolder(cache)
        with never, never_told:
            with folder.claim("some block"):
                process = FORK.Process(target=never.recv)
                process.start()
            with folder.claim("some block") as is_ours:
                assert is_ours
            os.kill(process.pid, signal.SIGKILL)
            assert ended(process) == -signal.SIGKILL


def read_many_times(cache):
    for _ in range(3):
        assert read_all(cache, Store()) == CONTENT


def with_cache(cache, storage=None):
    return FileOptions(block_bytes=20_000, storage_options=storage, retries=Retries(3, 0, 0), cache=cache)


@pytest.mark.usefixtures("fsspec_running")
class TestServers:
    def test_a_web_server_is_asked_once(self, web_server, cache):
        web_server.faults.clear()
        url = web_server.put("/cached.txt", CONTENT)
        assert all_rows(TextSource(url, with_cache(cache))) == LINES
        source = TextSource(url, with_cache(cache))
        source.blocks()
        web_server.requests.clear()
        assert all_rows(source) == LINES
        assert web_server.requests == []
        closes_are_done()

    @pytest.mark.parametrize("fault", ["reset", "unavailable", "silent"])
    def test_faults_of_a_web_server_leave_no_wrong_blocks(self, web_server, cache, fault):
        web_server.faults.clear()
        url = web_server.put("/cached.txt", CONTENT)
        source = TextSource(url, with_cache(cache))
        source.blocks()
        web_server.faults = [None, fault, None, fault]
        assert all_rows(source) == LINES
        assert all_rows(source) == LINES
        closes_are_done()

    def test_a_new_version_on_a_web_server_is_read_anew(self, web_server, cache):
        web_server.faults.clear()
        url = web_server.put("/cached.txt", CONTENT)
        assert all_rows(TextSource(url, with_cache(cache))) == LINES
        web_server.put("/cached.txt", b"\n".join(reversed(CONTENT.split(b"\n"))), '"2"')
        assert all_rows(TextSource(url, with_cache(cache))) == LINES[::-1]
        closes_are_done()

    def test_an_object_in_s3_is_asked_for_once(self, s3_server, cache):
        s3fs = pytest.importorskip("s3fs")
        s3_server.faults.clear()
        store = s3fs.S3FileSystem(endpoint_url=s3_server.direct_url)
        if not store.exists("cached"):
            store.mkdir("cached")
        store.pipe("cached/lines.txt", CONTENT)
        options = with_cache(cache, {"endpoint_url": s3_server.url})
        assert all_rows(TextSource("s3://cached/lines.txt", options)) == LINES
        source = pickle.loads(pickle.dumps(TextSource("s3://cached/lines.txt", options)))
        source.blocks()
        s3_server.requests.clear()
        assert all_rows(source) == LINES
        assert s3_server.requests == []
        s3fs.S3FileSystem.clear_instance_cache()


class TestArguments:
    @pytest.mark.parametrize(
        ("size", "n_bytes"),
        [(5, 5), ("5", 5), ("50 GB", 50 * 10**9), ("1.5 TiB", 3 << 39), ("2kB", 2000), ("7 mib", 7 << 20), ("8 B", 8)],
    )
    def test_sizes(self, size, n_bytes):
        assert size_in_bytes(size, "limit") == n_bytes

    @pytest.mark.parametrize("size", ["", "GB", "-1", -1, 1.5, True, None, "5 XB", "5 GB or so"])
    def test_what_is_no_size(self, size):
        with pytest.raises(ValueError, match="limit must be a number of bytes, or a string like '50 GB', got"):
            Cache("x", limit=size)

    def test_a_limit_below_one_block(self):
        with pytest.raises(ValueError, match="at most limit=1000, got 8388608"):
            Cache("x", limit="1 kB")

    def test_what_stands_for_a_cache(self, tmp_path, monkeypatch):
        monkeypatch.delenv("HEADRACE_CACHE", raising=False)
        cache = Cache(tmp_path)
        assert find_cache(cache) is cache
        assert find_cache(None) is find_cache(False) is None
        assert find_cache(tmp_path).folder == str(tmp_path)
        monkeypatch.setenv("HEADRACE_CACHE", "~/some")
        monkeypatch.setenv("HEADRACE_CACHE_LIMIT", "3 GB")
        found = find_cache(None)
        assert (found.folder, found.limit_bytes) == (str(Path.home() / "some"), 3 * 10**9)
        assert find_cache(False) is None
        with pytest.raises(TypeError, match="cache must be a Cache"):
            find_cache(5)

    def test_readers_take_a_cache(self, tmp_path):
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe("/cached/b.txt", CONTENT)
        (file,) = list_files("memory://cached/b.txt")
        assert list(read_text(file.path, cache=tmp_path)) == LINES
        (block,) = tmp_path.glob("??/*-0")
        assert zlib.crc32(block.read_bytes()[:-4]) == zlib.crc32(CONTENT)
