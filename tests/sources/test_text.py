"""Lines of text: whatever the bytes, the encoding and the cuts, they are those of one plain reader."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ChangedFileError, RecordError
from headrace.sources.chunks import TextChunk, split_text
from headrace.sources.compression import codec_by_content
from headrace.sources.options import FileOptions
from headrace.sources.source import FileVersion
from headrace.sources.text import LineSource, TextSource, WholeTextSource, WordSource
from headrace.sources.text_files import LineEnds, SegmentReader
from tests.sources.reading import all_rows, check_first_rows, rows_of, small_pieces

CUT = ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "latin-1", "cp037", "shift_jis", "gb18030"]
MARKED_BY_TEXT = ["utf-7", "utf-8", "utf-16-le", "utf-16-be", "utf-32-be"]  # Python writes no mark of its own
WHOLE = ["utf-7", "iso2022_jp", "hz"]
# U+0A0D, U+0D0A and U+0A0A hold the bytes of newlines in UTF-16; U+2028, U+0085 and \x0b end lines for str.splitlines.
nasty = st.text(st.sampled_from("ab\r\n\n\u0a0d\u0d0a\u0a0a\u2028\x85\x0b\x1cäé漢😀\ufeff\0"), max_size=60)


def plain_lines(text):
    """What a line is, said once more: it ends with LF, and a CR before that is no part of it."""
    return [
        line[:-2] if line.endswith("\r\n") else line.removesuffix("\n") for line in re.findall(r"[^\n]*\n|[^\n]+", text)
    ]


def write(folder, content, name="data.txt"):
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


class TestAnyCut:
    @settings(deadline=None)
    @given(nasty, st.sampled_from(CUT), st.integers(1, 40), st.integers(1, 40))
    def test_the_blocks_have_each_line_once(self, folder, text, encoding, block_bytes, piece_bytes):
        text = text.encode(encoding, "ignore").decode(encoding)  # what the encoding can say
        path = write(folder, text.encode(encoding))
        source = TextSource(path, FileOptions(encoding=encoding, block_bytes=block_bytes))
        if encoding in MARKED_BY_TEXT:
            text = text.removeprefix("\ufeff")
        with small_pieces(piece_bytes):
            assert all_rows(source) == plain_lines(text)
            check_first_rows(source)

    @settings(deadline=None)
    @given(
        nasty | st.text("ab \n", max_size=60) | st.text("ab  \n\t\0\x1c", max_size=60),
        st.integers(1, 40),
        st.integers(1, 40),
    )
    def test_the_blocks_have_each_word_once(self, folder, text, block_bytes, piece_bytes):
        source = WordSource(write(folder, text.encode()), FileOptions(block_bytes=block_bytes))
        with small_pieces(piece_bytes):
            assert all_rows(source) == text.removeprefix("\ufeff").split()
            check_first_rows(source)

    @settings(deadline=None)
    @given(nasty, st.sampled_from(WHOLE), st.integers(1, 40))
    def test_an_encoding_with_states_makes_one_block(self, folder, text, encoding, piece_bytes):
        text = text.encode(encoding, "ignore").decode(encoding)
        source = TextSource(write(folder, text.encode(encoding)), FileOptions(encoding=encoding, block_bytes=1))
        with small_pieces(piece_bytes):
            assert all_rows(source) == plain_lines(text.removeprefix("\ufeff"))
        assert len(source.blocks()) <= 1

    @settings(deadline=None)
    @given(
        st.binary(max_size=60).filter(lambda content: codec_by_content(content) is None),
        st.integers(1, 20),
        st.integers(1, 20),
    )
    def test_lines_that_are_no_text_are_left_out_alone(self, folder, content, block_bytes, piece_bytes):
        source = TextSource(write(folder, content), FileOptions(block_bytes=block_bytes))
        good, n_bad = [], 0
        for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
            try:
                good.append(line.decode())
            except UnicodeDecodeError:
                n_bad += 1
        expected = plain_lines("\n".join(good))
        bad = []
        with small_pieces(piece_bytes):
            assert [row for row in all_rows(source, bad) if row] == [row for row in expected if row]
        assert len(bad) == n_bad

    @settings(deadline=None)
    @given(st.lists(st.text("ab", max_size=9), max_size=12), st.integers(1, 9), st.integers(1, 20), st.integers(1, 20))
    def test_lines_that_are_too_long_are_left_out_alone(self, folder, texts, most, block_bytes, piece_bytes):
        path = write(folder, "".join(text + "\n" for text in texts).encode())
        source = TextSource(path, FileOptions(block_bytes=block_bytes, max_record_bytes=most))
        bad = []
        with small_pieces(piece_bytes):
            assert all_rows(source, bad) == [text for text in texts if len(text) <= most]
        assert len(bad) == sum(len(text) > most for text in texts)

    def test_many_files_come_one_after_the_other(self, tmp_path):
        for i in (2, 10, 1):
            write(tmp_path, f"{i}a\n{i}b".encode(), f"{i}.txt")
        write(tmp_path, b"", "0.txt")
        assert all_rows(TextSource(tmp_path)) == ["1a", "1b", "2a", "2b", "10a", "10b"]


class TestBadLines:
    def test_the_place_is_told(self, tmp_path):
        path = write(tmp_path, b"one\ntwo \xff\nthree\n")
        bad = []
        assert all_rows(TextSource(path), bad) == ["one", "three"]
        assert bad[0].where == f"{path}, bytes 0 to 16, line 2 of these (at byte 4)"
        assert bad[0].raw == b"two \xff\n"
        assert "UnicodeDecodeError" in bad[0].error

    def test_nobody_listens(self, tmp_path):
        with pytest.raises(RecordError, match=r"line 2 of these .*invalid start byte.*The record is b'two"):
            all_rows(TextSource(write(tmp_path, b"one\ntwo \xff\n")))

    def test_errors_can_be_replaced(self, tmp_path):
        source = TextSource(write(tmp_path, b"a\xffb\n"), FileOptions(errors="replace"))
        assert all_rows(source) == ["a\ufffdb"]

    def test_a_line_without_end_is_not_held(self, tmp_path):
        path = tmp_path / "one.txt.gz"
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
        source = TextSource(path, FileOptions(max_record_bytes=1 << 20))
        with pytest.raises(RecordError, match="longer than max_record_bytes=1048576"):
            all_rows(source)

    def test_compressed_without_saying_so(self, tmp_path):
        with pytest.raises(RecordError, match="compression='gzip'"):
            all_rows(TextSource(write(tmp_path, gzip.compress(b"a\n"))))


class TestCompressed:
    @pytest.mark.parametrize(
        ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
    )
    @pytest.mark.parametrize("named", [True, False])
    def test_is_one_block(self, tmp_path, suffix, compress, named):
        text = "\n".join(map(str, range(1000)))
        path = write(
            tmp_path, compress(text.encode()[:999]) + compress(text.encode()[999:]), f"a.{suffix}" if named else "a"
        )
        source = TextSource(path, FileOptions(block_bytes=10))
        assert all_rows(source) == text.split("\n")
        assert len(source.blocks()) == 1
        check_first_rows(source, most=3)
        assert source.describe()["compression"] == [{"gz": "gzip"}.get(suffix, suffix)]

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
    def test_in_another_encoding(self, tmp_path, encoding):
        text = "ä\r\n漢\u0a0d\n\nz"
        source = TextSource(
            write(tmp_path, gzip.compress(text.encode(encoding)), "a.gz"), FileOptions(encoding=encoding)
        )
        assert all_rows(source) == ["ä", "漢\u0a0d", "", "z"]


class TestFiles:
    def test_a_file_that_has_changed_is_not_read(self, tmp_path):
        path = write(tmp_path, b"a\nb\n")
        source = TextSource(path)
        (block,) = source.blocks()
        write(tmp_path, b"a\nb\nc\n")
        with pytest.raises(ChangedFileError, match=r"data.txt has changed .* size was 4, and is 6"):
            rows_of(source, block)

    def test_a_file_that_changes_while_it_is_read(self, tmp_path):
        path = write(tmp_path, b"first\nsecond\n")
        source = TextSource(path)
        with small_pieces(1):
            chunks = source.read(source.blocks()[0])
            assert next(chunks).rows() == ["first"]
            write(tmp_path, b"first\nsecond\nthird\n")
            with pytest.raises(ChangedFileError):
                list(chunks)

    def test_a_file_that_is_cut_short_while_it_is_read(self, tmp_path):
        path = write(tmp_path, b"a\n" * 100_000)
        source = TextSource(path)
        with small_pieces(20_000):
            chunks = source.read(source.blocks()[0])
            next(chunks)
            write(tmp_path, b"a\n")
            with pytest.raises(ChangedFileError, match="ends at byte"):
                list(chunks)

    def test_versions_and_description(self, tmp_path):
        path = write(tmp_path, b"a\nb\n")
        source = TextSource(path)
        assert source.versions() == [FileVersion(str(path), 4, str(path.stat().st_mtime_ns))]
        assert source.describe() == {
            "format": "text",
            "files": 1,
            "bytes": 4,
            "blocks": 1,
            "encoding": "utf-8",
            "compression": [],
        }

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"block_bytes": 0}, ValueError),
            ({"block_bytes": "1M"}, TypeError),
            ({"max_record_bytes": 0}, ValueError),
            ({"encoding": "hex"}, LookupError),
            ({"errors": "nope"}, LookupError),
        ],
    )
    def test_wrong_options(self, options, error):
        with pytest.raises(error):
            FileOptions(**options)

    @pytest.mark.parametrize("encoding", ["hex", "utf-9"])
    def test_what_is_no_encoding_of_text(self, encoding):
        with pytest.raises(LookupError, match=rf"encoding must be .*'utf-8'.*, got '{encoding}'\."):
            FileOptions(encoding=encoding)

    def test_what_is_no_way_to_treat_errors(self):
        with pytest.raises(LookupError, match=r"errors must be 'strict', .*'replace'.*, got 'nope'\."):
            FileOptions(errors="nope")


class TestWholeFiles:
    @settings(deadline=None)
    @given(nasty, st.sampled_from(CUT + WHOLE))
    def test_each_file_is_a_row(self, folder, text, encoding):
        text = text.encode(encoding, "ignore").decode(encoding)
        path = write(folder, text.encode(encoding))
        if encoding in MARKED_BY_TEXT:
            text = text.removeprefix("\ufeff")
        assert all_rows(WholeTextSource(path, FileOptions(encoding=encoding))) == [text]

    def test_a_file_that_is_too_long_is_bad(self, tmp_path):
        write(tmp_path, b"12345", "1.txt")
        write(tmp_path, b"1234", "2.txt")
        bad = []
        assert all_rows(WholeTextSource(tmp_path, FileOptions(max_record_bytes=4)), bad) == ["1234"]
        assert [record.raw for record in bad] == [b"12345"]


class TestLongLines:
    def test_a_line_of_a_gigabyte_takes_little_memory(self):
        class Gigabyte:
            """The content of a file, a piece at a time, which is not there as a whole."""

            left, end, piece = 1 << 30, b"\nlast", b"x" * (1 << 21)

            def read(self, n):
                self.left, reached = max(self.left - n, 0), min(self.left, n)
                if reached:
                    return self.piece if n == len(self.piece) else self.piece[:reached]
                self.end, rest = b"", self.end
                return rest

        too_long = []
        reader = SegmentReader(
            Gigabyte(), 0, None, LineEnds(b"\n"), 1 << 20, lambda *told: too_long.append(told), LineSource._piece_bytes
        )
        tracemalloc.start()
        try:
            segments = [segment.content for segment in reader]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert segments == [b"last"]
        assert [offset for offset, _ in too_long] == [0]
        assert peak < 8 << 20

    def test_a_long_line_is_read_in_few_pieces(self):
        class Counted(io.BytesIO):
            reads = 0

            def read(self, n=-1):
                self.reads += 1
                return super().read(n)

        stream = Counted(b"x" * (1 << 20) + b"\ny")
        reader = SegmentReader(stream, 0, None, LineEnds(b"\n"), 1 << 21, pytest.fail, 1 << 10)
        assert b"".join(segment.content for segment in reader) == stream.getvalue()
        assert stream.reads < 20


class TestUnsplitRows:
    """Some rows of a text, without splitting it all."""

    @given(st.text("ab \n", max_size=20), st.data())
    def test_lines(self, text, data):
        self.check(text, "\n", plain_lines(text), data)

    @given(st.text("ab \n\t\x1c", max_size=20), st.data())
    def test_words(self, text, data):
        self.check(text, None, text.split(), data)

    def check(self, text, separator, rows, data):
        chunk = TextChunk(text, separator, len(rows), "text")
        start = data.draw(st.integers(0, len(rows)))
        stop = data.draw(st.integers(start, len(rows)))
        assert split_text(text, separator) == rows
        assert split_text(chunk.text(start, stop), separator) == rows[start:stop]
