"""Files that cannot be cut, a stretch at a time: the rows are those of the whole, wherever the stretches are cut."""

from __future__ import annotations

import gzip
import multiprocessing
import pickle
import re
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.base.errors import RecordError
from headrace.sources import text_files
from headrace.sources.csv_format import CsvFormat
from headrace.sources.csv_rows import CsvSource
from headrace.sources.options import FileOptions
from headrace.sources.source import Block
from headrace.sources.text import JsonLinesSource, TextSource, WholeTextSource, WordSource
from tests.sources.reading import rows_of, small_pieces

ENCODINGS = ["utf-8", "utf-16", "utf-16-le", "utf-32", "latin-1", "utf-7", "iso2022_jp"]
nasty = st.text(st.sampled_from("ab\r\n\n\u0a0d\u0d0a\u0a0a\u2028äé漢😀\ufeff "), max_size=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stretches")


def write_gz(folder, content, name="data.gz"):
    path = folder / name
    path.write_bytes(gzip.compress(content, 0))
    return path


def stretches(source, copies=1):
    """All stretches, each read by one of some copies of the source in turn; and what was bad."""
    sources = [source, *(pickle.loads(pickle.dumps(source)) for _ in range(copies - 1))]
    rows, bad = [], []
    for block in source.blocks():
        for number in count():
            reader = sources[number % copies]
            stretch = pickle.loads(pickle.dumps(reader.stretch(block, number)))
            rows += rows_of(reader, stretch, bad=bad)
            if reader.ends_in(stretch):
                assert rows_of(reader, reader.stretch(block, number + 1), bad=bad) == []
                break
    return rows, bad


def of_whole(source):
    bad = []
    return [row for block in source.blocks() for row in rows_of(source, block, bad=bad)], bad


def told(bad):
    """What is bad, and where; how much of a record that is too long is shown depends on how it was read."""
    return [(re.search(r"at byte \d+", record.where)[0], record.error) for record in bad]


def check(source, copies=2):
    rows, bad = of_whole(source)
    found, found_bad = stretches(source, copies)
    assert found == rows
    assert told(found_bad) == told(bad)


class TestAnyStretch:
    @settings(deadline=None)
    @given(nasty, st.sampled_from(ENCODINGS), st.integers(1, 40), st.integers(1, 40), st.integers(1, 3))
    @example("\ufeff\r\na", "utf-8", 1, 1, 2)
    def test_lines_and_words(self, folder, text, encoding, stretch_bytes, piece_bytes, copies):
        path = write_gz(folder, text.encode(encoding, "ignore"))
        options = FileOptions(encoding=encoding, stretch_bytes=stretch_bytes)
        with small_pieces(piece_bytes):
            check(TextSource(path, options), copies)
            check(WordSource(path, options), copies)

    @settings(deadline=None)
    @given(st.binary(max_size=60), st.integers(1, 9), st.integers(1, 20), st.integers(1, 20), st.integers(1, 3))
    def test_bad_records(self, folder, content, most, stretch_bytes, piece_bytes, copies):
        path = write_gz(folder, content.replace(b"\x80", b"\n"))
        with small_pieces(piece_bytes):
            check(TextSource(path, FileOptions(stretch_bytes=stretch_bytes, max_record_bytes=most)), copies)

    @settings(deadline=None)
    @given(
        st.lists(st.sampled_from(['{"a": 1}', "[1, 2]", "", "  ", "3", "bad", '"ä"', "{"]), max_size=12),
        st.sampled_from(["\n", "\r\n"]),
        st.integers(1, 40),
        st.integers(1, 40),
        st.integers(1, 3),
    )
    def test_json_lines(self, folder, lines, newline, stretch_bytes, piece_bytes, copies):
        path = write_gz(folder, newline.join(lines).encode())
        with small_pieces(piece_bytes):
            check(JsonLinesSource(path, FileOptions(stretch_bytes=stretch_bytes)), copies)

    @settings(deadline=None)
    @given(
        st.lists(st.sampled_from(['1,"x\ny"', "2,b", "", '3,"a""b"', "bad", '4,"\r\n\n"', '5,"never']), max_size=12),
        st.sampled_from(["", "\n", "\r\n\n", "\ufeff", "\ufeff\n"]),
        st.booleans(),
        st.sampled_from(["utf-8", "utf-7"]),
        st.integers(1, 40),
        st.integers(1, 40),
        st.integers(1, 3),
    )
    def test_tables(self, folder, lines, before, header, encoding, stretch_bytes, piece_bytes, copies):
        text = before + "\n".join(["n,text", *lines])
        path = write_gz(folder, text.encode(encoding))
        table = CsvFormat(header=header, types={"n": "int"} if header else {"f0": "str"})
        with small_pieces(piece_bytes):
            check(CsvSource(path, table, FileOptions(encoding=encoding, stretch_bytes=stretch_bytes)), copies)

    @settings(deadline=None)
    @given(
        st.lists(st.sampled_from(["1,x", "2,b", "", "bad"]), max_size=12),
        st.sampled_from(["", "\n", "\r\n\n", "\ufeff\n"]),
        st.integers(1, 40),
        st.integers(1, 3),
    )
    def test_tables_without_quoted_newlines(self, folder, lines, before, stretch_bytes, copies):
        path = write_gz(folder, (before + "\n".join(["n,text", *lines])).encode())
        table = CsvFormat(newlines_in_values=False)
        check(CsvSource(path, table, FileOptions(stretch_bytes=stretch_bytes)), copies)


class TestCursors:
    @pytest.fixture
    def opened(self, monkeypatch):
        """The paths of the streams that were opened."""
        paths = []
        real = TextSource._open

        def open_and_count(self, block, start):
            paths.append(block.path)
            return real(self, block, start)

        monkeypatch.setattr(TextSource, "_open", open_and_count)
        return paths

    @pytest.fixture
    def source(self, tmp_path):
        path = write_gz(tmp_path, b"".join(b"%d\n" % i for i in range(100_000)))
        source = TextSource(path, FileOptions(stretch_bytes=10_000))
        yield source
        source.close()

    def test_ascending_stretches_decompress_once(self, source, opened):
        [block] = source.blocks()
        for number in (0, 1, 2, 5, 6, 20, 58, 59, 70):
            rows_of(source, source.stretch(block, number))
        assert len(opened) == 1
        assert not source._cursors._open
        rows_of(source, source.stretch(block, 3))
        assert len(opened) == 2
        rows_of(source, source.stretch(block, 2))
        assert len(opened) == 3

    def test_two_files_are_kept_open(self, tmp_path, opened):
        paths = [write_gz(tmp_path, b"line\n" * 1000, f"{i}.gz") for i in range(3)]
        source = TextSource(paths, FileOptions(stretch_bytes=100))
        for number in range(3):
            for block in source.blocks()[:2]:
                rows_of(source, source.stretch(block, number))
        assert len(opened) == 2
        rows_of(source, source.stretch(source.blocks()[2], 0))
        assert len(source._cursors._open) == text_files._MOST_CURSORS

    def test_a_stretch_that_is_not_read_to_its_end_closes_the_file(self, source, opened):
        stretch = source.stretch(source.blocks()[0], 0)
        with small_pieces(100):
            chunks = source.read(stretch)
            next(chunks)
            chunks.close()
        assert not source._cursors._open
        assert not source.ends_in(stretch)
        assert rows_of(source, stretch)[:2] == ["0", "1"]

    def test_a_forked_process_opens_its_own(self, source):
        [block] = source.blocks()
        rows_of(source, source.stretch(block, 0))

        def read(sender):
            sender.send((rows_of(source, source.stretch(block, 1)), rows_of(source, source.stretch(block, 2))))

        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=read, args=(sender,))
        process.start()
        found = receiver.recv()
        process.join()
        process.close()
        receiver.close()
        sender.close()
        assert found == (rows_of(source, source.stretch(block, 1)), rows_of(source, source.stretch(block, 2)))

    def test_the_first_rows_can_be_left_out(self, source):
        stretch = source.stretch(source.blocks()[0], 1)
        rows = rows_of(source, stretch)
        assert rows_of(source, stretch, 7) == rows[7:]


def test_what_cannot_be_dealt_out_has_no_stretches(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("a\nb\n")
    source = TextSource(path)
    assert source.stretch(source.blocks()[0], 0) is None
    assert not hasattr(WholeTextSource(path), "stretch")


def test_damage_is_raised_by_every_stretch_behind_it(tmp_path):
    path = write_gz(tmp_path, b"line\n" * 100_000)
    path.write_bytes(path.read_bytes()[:-100_000])
    source = TextSource(path, FileOptions(stretch_bytes=50_000))
    block = Block(str(path), 0, None)
    assert rows_of(source, source.stretch(block, 0)) == ["line"] * 10_000
    for number in (9, 20):
        with pytest.raises(RecordError, match="ends too early"):
            rows_of(source, source.stretch(block, number))


def test_a_bad_record_is_named_by_its_place_in_the_content(tmp_path):
    source = TextSource(write_gz(tmp_path, b"abc\n\xff\n"), FileOptions(stretch_bytes=4))
    with pytest.raises(RecordError, match=r"decompressed bytes 4 to 8, line 1 of these \(at byte 4\)"):
        rows_of(source, source.stretch(source.blocks()[0], 1))
