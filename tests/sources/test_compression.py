"""Compressed streams: every codec, in pieces, joined, damaged, cut short, and far expanding."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tracemalloc

import pytest

from headrace import DataLoader, read_text
from headrace.base.errors import RecordError
from headrace.base.optional import is_installed
from headrace.sources import compression
from headrace.sources.compression import codec_by_content, decompress

COMPRESS = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
CONTENT = b"".join(b"line %d\n" % (i * 7919 % 10007) for i in range(20_000))

if is_installed("zstandard"):
    import zstandard

    COMPRESS["zstd"] = zstandard.compress


@pytest.fixture(params=["gzip", "bz2", "xz", "zstd by pyarrow", "zstd by zstandard"])
def codec(request, monkeypatch):
    name, _, library = request.param.partition(" by ")
    if library:
        pytest.importorskip("zstandard")  # writes the files
        pytest.importorskip(library)
        monkeypatch.setattr(compression, "is_installed", lambda module: module == library)
    return name


def read(codec, content):
    raw = io.BytesIO(content)
    with decompress(raw, codec, "file") as stream:
        read = stream.read()
    assert raw.closed
    return read


def test_content(codec):
    assert read(codec, COMPRESS[codec](CONTENT)) == CONTENT
    assert codec_by_content(COMPRESS[codec](CONTENT)) == codec
    assert codec_by_content(COMPRESS[codec](b"")) == codec


def test_nothing(codec):
    assert read(codec, COMPRESS[codec](b"")) == b""


def test_files_joined_together(codec):
    parts = [CONTENT[:1000], b"", CONTENT[1000:1001], CONTENT[1001:]]
    assert read(codec, b"".join(map(COMPRESS[codec], parts))) == CONTENT


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_cut_short(codec, kept):
    compressed = COMPRESS[codec](CONTENT)
    with pytest.raises(RecordError, match=f"file: the {codec} data (ends too early|is damaged)"):
        read(codec, compressed[: int(len(compressed) * kept)])


def test_damaged(codec):
    compressed = bytearray(COMPRESS[codec](CONTENT))
    compressed[len(compressed) // 2 : len(compressed) // 2 + 200] = bytes(200)
    with pytest.raises(RecordError, match=f"file: the {codec} data is damaged"):
        assert read(codec, bytes(compressed)) == CONTENT


def test_not_compressed_at_all(codec):
    with pytest.raises(RecordError, match=f"file: the {codec} data"):
        read(codec, b"just some text, and enough of it to be seen as such\n" * 10)


def test_memory_does_not_grow_with_the_content(codec):
    compressed = COMPRESS[codec](bytes(64 << 20))
    with decompress(io.BytesIO(compressed), codec, "file") as stream:
        tracemalloc.start()
        n = sum(len(piece) for piece in iter(lambda: stream.read(1 << 16), b""))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert n == 64 << 20
    assert peak < 40 << 20


def test_an_error_of_the_file_beneath_stays_what_it_is(codec):
    class Broken(io.BytesIO):
        def read(self, n=-1):
            if self.tell() > 100:
                raise ConnectionResetError("gone")
            return super().read(min(n, 200))

        def read1(self, n=-1):
            return self.read(n)

        def readinto(self, buffer):
            piece = self.read(len(buffer))
            buffer[: len(piece)] = piece
            return len(piece)

    with decompress(Broken(COMPRESS[codec](CONTENT)), codec, "file") as stream, pytest.raises(ConnectionResetError):
        stream.read()


def test_no_such_codec():
    with pytest.raises(ValueError, match="must be one of 'gzip', 'zstd', 'bz2', 'xz', 'auto' or None, got 'rar'"):
        decompress(io.BytesIO(), "rar", "file")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_file_that_ends_too_early_is_left_out_once_and_costs_no_other(tmp_path, workers):
    numbers = random.Random(1)
    lines = [f"{numbers.random()}" for _ in range(60_000)]
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode())[:-100])
    (tmp_path / "good.txt").write_text("one\ntwo\n")
    stream = read_text([tmp_path / "cut.txt.gz", tmp_path / "good.txt"], stretch_bytes=100_000)
    with DataLoader(stream, batch_size=5000, on_error="skip", collate_fn=list, num_workers=workers) as loader:
        for _ in range(2):
            rows = [row for batch in loader for row in batch]
            assert rows == [*lines[: len(rows) - 2], "one", "two"]
            assert len(rows) > 10_000
        assert "ends too early" in loader.errors[0].error
