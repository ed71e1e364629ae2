"""Compressed files as streams: which codec, and their content a piece at a time."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from headrace.base.errors import RecordError
from headrace.base.optional import import_extra, is_installed

_SUFFIXES = {
    ".gz": "gzip",
    ".tgz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".tzst": "zstd",
    ".bz2": "bz2",
    ".tbz2": "bz2",
    ".xz": "xz",
    ".txz": "xz",
}
_BEGINNINGS = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
}
N_FIRST_BYTES = 10  # the longest of these
_BUFFER_BYTES = 1 << 18
# A block of zstd takes 4 bytes at least and is 128 KB at most: what this many bytes expand to is bounded by 16 MB.
_ZSTD_INPUT_BYTES = 1 << 9


def is_compressed(path: str) -> bool:
    """Whether the name of a file says that it is compressed."""
    return codec_by_name(path) is not None


def codec_by_name(path: str) -> str | None:
    """The codec of a suffix, if any; the query of a web address is not part of the name."""
    name = path.partition("?")[0] if path.startswith(("http://", "https://")) else path
    return next((codec for suffix, codec in _SUFFIXES.items() if name.lower().endswith(suffix)), None)


def codec_by_content(first_bytes: bytes) -> str | None:
    """The codec whose files begin like this, if any."""
    return next((codec for codec, beginning in _BEGINNINGS.items() if beginning.match(first_bytes)), None)


def decompress(raw: BinaryIO, codec: str, path: str) -> io.BufferedReader:
    """The content of a compressed stream, a piece at a time; closing it closes the stream.

    Guarantees: memory does not grow with the content, however far that expands.

    Args:
        path: for errors.

    Raises:
        ValueError: no such codec.
        MissingExtraError: zstd, and neither pyarrow nor zstandard is installed.
        RecordError, when it is read: the stream is damaged, ends too early, or is compressed otherwise.
    """
    if codec not in _OPENERS:
        raise ValueError(f"compression must be one of {', '.join(map(repr, _OPENERS))}, 'auto' or None, got {codec!r}.")
    return io.BufferedReader(_Decompressed(_OPENERS[codec](raw), raw, f"{path}: the {codec} data"), _BUFFER_BYTES)


class _Decompressed(io.RawIOBase):
    """Reads from a decompressor, and reports damage in one way for all codecs."""

    def __init__(self, content: Any, raw: BinaryIO, what: str) -> None:
        self._content = content
        self._raw = raw
        self._what = what

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self._content.read(len(buffer))
        except EOFError as error:
            raise RecordError(f"{self._what} ends too early.") from error
        except Exception as error:
            if not _is_damage(error):
                raise
            raise RecordError(f"{self._what} is damaged: {error}.") from error
        memoryview(buffer).cast("B")[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._content.close()
            self._raw.close()
        super().close()


class _ZstdContent:
    """zstd by way of `zstandard`, whose own reader would take a file that ends too early for a whole one."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._new_frame = import_extra("zstandard", "arrow", "Reading zstd").ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._held = memoryview(b"")

    def read(self, n: int) -> memoryview:
        while not self._held:
            compressed = self._raw.read(_ZSTD_INPUT_BYTES)
            if not compressed:
                if self._frame is not None:
                    raise EOFError
                break
            self._held = memoryview(self._expand(compressed))
        piece, self._held = self._held[:n], self._held[n:]
        return piece

    def _expand(self, compressed: bytes) -> bytes:
        """The content of some bytes; a frame may end in them, and others follow."""
        parts = []
        while compressed:
            self._frame = self._frame or self._new_frame()
            parts.append(self._frame.decompress(compressed))
            compressed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._held = memoryview(b"")


def _open_zstd(raw: BinaryIO) -> Any:
    if not is_installed("pyarrow") and is_installed("zstandard"):
        return _ZstdContent(raw)
    from headrace.sources.arrow import open_zstd

    return open_zstd(raw)


def _is_damage(error: Exception) -> bool:
    """Whether a codec complains, and not the file beneath it, which has errors of its own."""
    if isinstance(error, (zlib.error, lzma.LZMAError, gzip.BadGzipFile)) or type(error).__name__ == "ZstdError":
        return True
    return type(error) is OSError and error.errno is None  # those of bz2 and pyarrow


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    "zstd": _open_zstd,
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}
