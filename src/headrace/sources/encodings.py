"""Text encodings: what a newline looks like in bytes, and whether a file can be split anywhere."""

from __future__ import annotations

import codecs
import functools
import io
from dataclasses import dataclass
from typing import Any, BinaryIO

from headrace.base.errors import RecordError

# Encodings of several bytes a character in which a byte 0x0A is always a newline.
_NEWLINE_IS_A_BYTE = {
    *("utf-8", "big5", "big5hkscs", "cp932", "cp949", "cp950", "euc_jp", "euc_jis_2004", "euc_jisx0213", "euc_kr"),
    *("gb2312", "gbk", "gb18030", "johab", "shift_jis", "shift_jis_2004", "shift_jisx0213"),
}
_UNIT_BYTES = {"utf-16": 2, "utf-16-le": 2, "utf-16-be": 2, "utf-32": 4, "utf-32-le": 4, "utf-32-be": 4}
_BIG_ENDIAN_MARKS = {"utf-16": codecs.BOM_UTF16_BE, "utf-32": codecs.BOM_UTF32_BE}
_PIECE_BYTES = 1 << 18
N_MARK_BYTES = 4


@dataclass(frozen=True, slots=True)
class TextEncoding:
    """An encoding of lines.

    Attributes:
        name: the codec.
        unit_bytes: a character takes a multiple of this; a newline takes just this.
        can_cut: whether a line can be decoded without those before it, and newlines be found in the bytes.
    """

    name: str
    unit_bytes: int
    can_cut: bool

    @property
    def is_ascii_in_bytes(self) -> bool:
        """Whether bytes below 128 are always ASCII characters, as a search for separators in the bytes assumes."""
        return self.name == "utf-8" or (_is_single_byte(self.name) and _extends_ascii(self.name))

    @property
    def newline(self) -> bytes:
        return "\n".encode(self.name)

    @property
    def mark(self) -> bytes:
        """The byte order mark that a file may begin with; not part of its text."""
        return "\ufeff".encode(self.name) if self.name.startswith("utf-") and self.can_cut else b""

    @property
    def needs_mark(self) -> bool:
        """Whether the first bytes of a file must be seen to know the order of bytes."""
        return self.name in _BIG_ENDIAN_MARKS

    def as_marked(self, first_bytes: bytes) -> TextEncoding:
        """The encoding of a file that begins like this; little endian if no mark says otherwise."""
        if not self.needs_mark:
            return self
        order = "-be" if first_bytes.startswith(_BIG_ENDIAN_MARKS[self.name]) else "-le"
        return TextEncoding(self.name + order, self.unit_bytes, self.can_cut)


@functools.cache
def find_encoding(name: str) -> TextEncoding:
    """The encoding of that name.

    Raises:
        LookupError: it is unknown, or not a text encoding.
    """
    try:
        b"    ".decode(name, "replace")  # refuses codecs that are not of text
    except LookupError as error:
        raise LookupError(
            f"encoding must be one of text that Python knows, such as 'utf-8' or 'latin-1', got {name!r}."
        ) from error
    codec = codecs.lookup(name).name
    codec = "utf-8" if codec == "utf-8-sig" else codec
    if codec in _UNIT_BYTES:
        return TextEncoding(codec, _UNIT_BYTES[codec], can_cut=True)
    return TextEncoding(codec, 1, can_cut=codec in _NEWLINE_IS_A_BYTE or _is_single_byte(codec))


def check_errors(name: str) -> None:
    """Check the name of a way to handle bytes that cannot be decoded.

    Raises:
        LookupError: it is unknown.
    """
    try:
        codecs.lookup_error(name)
    except LookupError as error:
        raise LookupError(
            f"errors must be 'strict', or what `bytes.decode` takes, such as 'replace' or 'ignore', got {name!r}."
        ) from error


def as_utf8(stream: BinaryIO, encoding: TextEncoding, errors: str, path: str) -> BinaryIO:
    """A stream of another encoding as UTF-8, a piece at a time; closing it closes the stream.

    Args:
        path: for errors.

    Raises:
        RecordError, when it is read: bytes cannot be decoded, and `errors` is "strict".
    """
    return io.BufferedReader(_Utf8(stream, encoding, errors, path), _PIECE_BYTES)


class _Utf8(io.RawIOBase):
    def __init__(self, stream: BinaryIO, encoding: TextEncoding, errors: str, path: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding.name)(errors)
        self._path = path
        self._held = memoryview(b"")
        self._at_end = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held and not self._at_end:
            piece = self._stream.read(_PIECE_BYTES)
            self._at_end = not piece
            try:
                text = self._decoder.decode(piece, final=self._at_end)
            except UnicodeDecodeError as error:
                raise RecordError(f"{self._path} cannot be read: {error}.") from error
            self._held = memoryview(text.encode("utf-8", "surrogatepass"))
        n = min(len(buffer), len(self._held))
        memoryview(buffer).cast("B")[:n] = self._held[:n]
        self._held = self._held[n:]
        return n

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def _is_single_byte(codec: str) -> bool:
    """Whether every byte is a character, whatever comes before it."""
    if codec in _NEWLINE_IS_A_BYTE or codec in _UNIT_BYTES or codec in ("utf-7", "punycode", "idna"):
        return False
    decoder = codecs.getincrementaldecoder(codec)("replace")
    return all(len(decoder.decode(bytes([byte]))) == 1 for byte in range(256))


def _extends_ascii(codec: str) -> bool:
    return bytes(range(128)).decode(codec, "replace") == bytes(range(128)).decode("ascii")
