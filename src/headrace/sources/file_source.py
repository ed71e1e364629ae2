"""What sources of text files have in common: the files, how they are cut and opened, what is said of bad records."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from headrace.base.arguments import check_count
from headrace.base.errors import RecordError
from headrace.sources.access import Access
from headrace.sources.chunks import skip_rows
from headrace.sources.compression import N_FIRST_BYTES, codec_by_content, codec_by_name
from headrace.sources.encodings import N_MARK_BYTES, TextEncoding, as_utf8, check_errors, find_encoding
from headrace.sources.files import Paths, can_seek, check_unchanged, is_local, list_files, open_range, open_stream
from headrace.sources.lines import BEYOND_BYTES, cut_ranges
from headrace.sources.source import BadRecord, Block, Chunk, FileVersion, OnBad

# What a window holds of a small block stays in the processor's cache; a third faster than 8 MiB.
_LOCAL_BLOCK_BYTES = 2 << 20
_STORED_BLOCK_BYTES = 8 << 20
_RAW_BYTES = 4096  # of a bad record, to show


@dataclass(frozen=True)
class FileOptions:
    """How files are reached, cut and decoded.

    Attributes:
        encoding: any that Python knows. Files in one that cannot be cut, like UTF-7, are a block each.
        errors: what becomes of bytes that are no text: "strict" makes their record a bad one; or as in `bytes.decode`.
        compression: "gzip", "zstd", "bz2", "xz" or None; "auto" goes by the suffix, or by the first bytes of a file
            whose name has no suffix at all. A compressed file is one block.
        block_bytes: how long a block is, about; if None, 2 MiB of a local file, and 8 MiB of one in a store, where each
            block costs a request.
        max_record_bytes: a record that takes more bytes, without its newline, is a bad one.
        access: how files in stores are reached.

    Raises:
        ValueError: a number is too small.
        LookupError: there is no such encoding, or no such way to treat errors.
    """

    encoding: str = "utf-8"
    errors: str = "strict"
    compression: str | None = "auto"
    block_bytes: int | None = None
    max_record_bytes: int = 64 << 20
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        find_encoding(self.encoding)
        check_errors(self.errors)
        for name in ("block_bytes", "max_record_bytes"):
            given = getattr(self, name)
            if given is not None:
                check_count(name, given, 1)

    def block_bytes_of(self, file: FileVersion) -> int:
        """How long a block of this file is, about."""
        return self.block_bytes or (_LOCAL_BLOCK_BYTES if is_local(file.path) else _STORED_BLOCK_BYTES)


class FileSource(ABC):
    """A source of text files, which are listed when they are first asked for, and then remembered, also in a pickle."""

    format: str
    is_plain = True
    """Whether reading runs no code but ours, and that of libraries that we know."""

    def __init__(self, paths: Paths, options: FileOptions | None = None) -> None:
        self._paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self.options = options or FileOptions()
        self._files: dict[str, FileVersion] | None = None
        self._blocks: tuple[Block, ...] | None = None
        self._codecs: dict[str, str | None] = {}

    def versions(self) -> list[FileVersion]:
        return list(self._listed().values())

    def blocks(self) -> Sequence[Block]:
        if self._blocks is None:
            self._blocks = tuple(block for file in self.versions() for block in self._cut(file))
        return self._blocks

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on; see `Source.read`."""
        yield from skip_rows(self._read(block, on_bad), first_row)
        check_unchanged(self._listed()[block.path])

    def describe(self) -> dict[str, Any]:
        files = self.versions()
        sizes = [file.size for file in files]
        return {
            "format": self.format,
            "files": len(files),
            "bytes": None if None in sizes else sum(size or 0 for size in sizes),
            "blocks": len(self.blocks()),
            "encoding": self.options.encoding,
            "compression": sorted({codec for file in files if (codec := self._codec(file))}),
        }

    @abstractmethod
    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        """All rows of a block."""

    def _listed(self) -> dict[str, FileVersion]:
        if self._files is None:
            files = list_files(self._paths, self.options.access)
            self._files = {file.path: file for file in files}
        return self._files

    def _cut(self, file: FileVersion) -> list[Block]:
        """The blocks of a file: ranges of bytes that begin and end anywhere; one if it cannot be cut."""
        if not self._can_cut(file):
            return [] if file.size == 0 else [Block(file.path, 0, None, n_bytes=file.size or 0)]
        ranges = cut_ranges(file.size or 0, self.options.block_bytes_of(file), self._encoding().unit_bytes)
        return [Block(file.path, start, stop, n_bytes=stop - start) for start, stop in ranges]

    def _can_cut(self, file: FileVersion) -> bool:
        if self._codec(file) is not None or not self._can_cut_encoding():
            return False
        is_small = file.size is not None and file.size <= self.options.block_bytes_of(file)
        return is_small or can_seek(file, self.options.access)

    def _can_cut_encoding(self) -> bool:
        return self._encoding().can_cut

    def _encoding(self) -> TextEncoding:
        return find_encoding(self.options.encoding)

    def _codec(self, file: FileVersion) -> str | None:
        if file.path not in self._codecs:
            self._codecs[file.path] = self._find_codec(file)
        return self._codecs[file.path]

    def _find_codec(self, file: FileVersion) -> str | None:
        if self.options.compression != "auto":
            return self.options.compression
        name = file.path.rpartition("/")[2]
        if "." in name or file.size == 0:
            return codec_by_name(file.path)
        return codec_by_content(self._first_bytes(file, N_FIRST_BYTES))

    def _first_bytes(self, file: FileVersion, n: int) -> bytes:
        with open_range(file, 0, n, self.options.access) as opened:
            return opened.read(n)

    def _open(self, block: Block, start: int) -> tuple[BinaryIO, TextEncoding]:
        """The file of a block, open at `start`, decompressed, and how its bytes are to be read."""
        file, options = self._listed()[block.path], self.options
        encoding = self._encoding()
        if block.stop is not None:
            if encoding.is_told_by_mark:
                encoding = encoding.as_marked(self._first_bytes(file, N_MARK_BYTES))
            read_to = block.stop + BEYOND_BYTES
            stream = open_range(file, start, read_to, options.access)
            return _refuse_compressed(stream, block) if start == 0 else stream, encoding
        codec = self._codec(file)
        stream = open_stream(file, options.access, codec)
        if codec is None:
            _refuse_compressed(stream, block)
        encoding = encoding.as_marked(stream.peek(N_MARK_BYTES))
        if self._can_cut_encoding():
            return stream, encoding
        return as_utf8(stream, encoding, options.errors, block.path), find_encoding("utf-8")


def bad_record(block: Block, line: int, offset: int, raw: bytes, problem: BaseException | str) -> BadRecord:
    """A bad record of a text file: where it is, and what is wrong with it.

    Args:
        line: how many lines of the block come before it.
        offset: where it begins in the file, or in its decompressed content.
    """
    stop = "the end" if block.stop is None else block.stop
    where = f"{block.path}, bytes {block.start} to {stop}, line {line + 1} of these (at byte {offset})"
    error = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
    return BadRecord(where, raw[:_RAW_BYTES], error)


def _refuse_compressed(stream: io.BufferedReader, block: Block) -> io.BufferedReader:
    """The stream, which is at its beginning.

    Raises:
        RecordError: it is compressed, though nobody said so.
    """
    codec = codec_by_content(stream.peek(N_FIRST_BYTES))
    if codec is None:
        return stream
    stream.close()
    raise RecordError(f"{block.path} is compressed, though its name does not say so: pass compression={codec!r}.")
