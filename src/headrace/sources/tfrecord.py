"""TFRecord files, read without TensorFlow: each record behind its length, with checksums."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO, NamedTuple, final

import numpy as np
import numpy.typing as npt

from headrace.base.optional import import_extra, is_installed
from headrace.base.world import keep_freed_memory
from headrace.sources.chunks import ColumnChunk, ObjectChunk, RecordChunk, skip_rows
from headrace.sources.compression import N_FIRST_BYTES, codec_by_content, codec_by_name, decompress
from headrace.sources.files import Paths, check_unchanged, is_local, list_files, open_range
from headrace.sources.options import FileOptions
from headrace.sources.source import BadRecord, Block, Chunk, FileVersion, OnBad, skip_bad
from headrace.sources.tf_example import check_features, parse_examples

_BLOCK_BYTES = 8 << 20
_MAX_RECORD_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_RAW_BYTES = 4096  # of a bad record, to show
_THREADS = 8
_HEADER = struct.Struct("<Q")
_HEADER_BYTES, _FOOTER_BYTES = 12, 4  # a length and its checksum; the checksum of the record
_MASK = 0xA282EAD8


@final
class TfRecordSource:
    """Records of TFRecord files: `tf.train.Example` messages as dicts, or the bytes as they are.

    Blocks are about `block_bytes` of a file, found by a look at the lengths. Where the file is compressed, or far away,
    so that this look would cost about as much as reading it, the whole file is a block.

    Guarantees: lengths are checked by their checksums before they are used, so damage is noticed where it is.

    Args:
        features: by name, `int`, `float`, `bytes` or `str` for one value, a list of one of these for any number; others
            are not read. If None, all are: numbers as arrays, bytes by themselves if there is one, else in a list.
        parse: False for records as bytes.
        split: whether to cut files into blocks; None cuts those that are local and not compressed.
        checksums: whether to check those of the records, which takes google-crc32c; None if that is installed.
    """

    format = "tfrecord"
    is_plain = True  # see `FileSource`

    def __init__(
        self,
        paths: Paths,
        *,
        features: Mapping[str, Any] | None = None,
        parse: bool = True,
        split: bool | None = None,
        checksums: bool | None = None,
        options: FileOptions | None = None,
    ) -> None:
        if features is not None and not parse:
            raise ValueError("`features` are those of parsed records: pass parse=True, or no features.")
        self._paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._features = check_features(features)
        self._parse = parse
        self._split = split
        self._checks = is_installed("google_crc32c") if checksums is None else checksums
        if self._checks:
            import_extra("google_crc32c", "tfrecord", "Checking the checksums of TFRecord files")
        self._options = options or FileOptions()
        self._block_bytes = self._options.block_bytes or _BLOCK_BYTES
        self._max_record_bytes = self._options.max_record_bytes or _MAX_RECORD_BYTES
        self._files: dict[str, FileVersion] | None = None
        self._codecs: dict[str, str | None] = {}
        self._blocks: tuple[Block, ...] | None = None

    def versions(self) -> list[FileVersion]:
        if self._files is None:
            self._files = {file.path: file for file in list_files(self._paths, self._options)}
        return list(self._files.values())

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order; goes over the lengths in local files once."""
        if self._blocks is None:
            keep_freed_memory()  # here, too: this process gets the rows that workers read
            files = self.versions()
            with ThreadPoolExecutor(min(_THREADS, len(files) or 1)) as threads:
                self._blocks = tuple(block for blocks in threads.map(self._cut, files) for block in blocks)
        return self._blocks

    def describe(self) -> dict[str, Any]:
        blocks, files = self.blocks(), self.versions()
        sizes, counts = [file.size for file in files], [block.rows for block in blocks]
        return {
            "format": self.format,
            "files": len(files),
            "bytes": None if None in sizes else sum(filter(None, sizes)),
            "blocks": len(blocks),
            "compression": sorted({codec for codec in self._codecs.values() if codec}),
            "rows": None if None in counts else sum(filter(None, counts)),
            "checksums": "of lengths and records" if self._checks else "of lengths",
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The records of a block from `first_row` on.

        Raises:
            RecordError: a record is damaged, too large, or no `tf.train.Example`; and `on_bad` is None.
        """
        # Which records are bad shows only when they are parsed. If none may be, those before are skipped unseen.
        unseen, seen = (first_row, 0) if on_bad is None else (0, first_row)
        yield from skip_rows(self._chunks(block, unseen, on_bad), seen)
        check_unchanged(self._file(block.path))

    def _chunks(self, block: Block, first: int, on_bad: OnBad | None) -> Iterator[Chunk]:
        keep_freed_memory()
        file = self._file(block.path)
        with self._open(file, block.start, block.stop) as opened:
            for frames in _read_frames(opened, block.start, block.stop, self._max_record_bytes):
                n = len(frames.begins)
                if n > first:
                    left = frames._replace(begins=frames.begins[first:], ends=frames.ends[first:])
                    yield from self._parsed(left, block, on_bad)
                first = max(0, first - n)
                if frames.problem is not None:
                    report = BadRecord(f"{block.path}, record at byte {frames.end}", frames.rest, frames.problem)
                    skip_bad(report, on_bad)

    def _parsed(self, frames: _Frames, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        report = partial(_report, frames, block, on_bad)
        if self._checks:
            frames = self._checked(frames, report)
        content, begins, ends = frames.content, frames.begins, frames.ends
        if not self._parse:
            pairs = zip(begins.tolist(), ends.tolist(), strict=True)
            yield ObjectChunk([content[begin:end] for begin, end in pairs], "record")
            return
        columns, kept, is_even = parse_examples(
            content, begins, ends, self._features, partial(_report, frames, block, on_bad)
        )
        if is_even:
            yield ColumnChunk(columns, len(kept))
            return
        rows: dict[int, dict[str, Any]] = {i: {} for i in kept.tolist()}
        for name, column in columns.items():
            for i, value in column.items():
                if i in rows:
                    rows[i][name] = value
        yield RecordChunk(list(rows.values()))

    def _checked(self, frames: _Frames, report: Any) -> _Frames:
        """The records whose checksums are right."""
        checksum = import_extra("google_crc32c", "tfrecord", "Checking checksums").value
        content, pairs = frames.content, zip(frames.begins.tolist(), frames.ends.tolist(), strict=True)
        found = np.fromiter((checksum(content[begin:end]) for begin, end in pairs), np.uint32, len(frames.begins))
        expected = np.frombuffer(content, np.uint8)[frames.ends[:, None] + np.arange(_FOOTER_BYTES)].view("<u4")[:, 0]
        is_right = _mask(found) == expected
        if is_right.all():
            return frames
        for i in np.flatnonzero(~is_right).tolist():
            report(i, "its checksum is wrong")
        return frames._replace(begins=frames.begins[is_right], ends=frames.ends[is_right])

    def _file(self, path: str) -> FileVersion:
        self.versions()
        assert self._files is not None
        return self._files[path]

    def _open(self, file: FileVersion, start: int, stop: int | None) -> BinaryIO:
        opened = open_range(file, start, stop, self._options)
        codec = self._codec(file)
        return opened if codec is None else decompress(opened, codec, file.path)

    def _codec(self, file: FileVersion) -> str | None:
        """How a file is compressed, by its name, or else by how it begins."""
        if file.path not in self._codecs:
            codec = codec_by_name(file.path)
            if codec is None and is_local(file.path):
                with open_range(file, 0, N_FIRST_BYTES, self._options) as opened:
                    codec = codec_by_content(opened.read(N_FIRST_BYTES))
            self._codecs[file.path] = codec
        return self._codecs[file.path]

    def _cut(self, file: FileVersion) -> list[Block]:
        if file.size == 0:
            return []
        codec = self._codec(file)
        split = is_local(file.path) and codec is None if self._split is None else self._split
        if not split or file.size is None:
            return [Block(file.path, 0, None, n_bytes=file.size or 0)]
        if codec is not None:
            raise ValueError(f"A compressed file cannot be cut, got {file.path!r}. Unpack it, or pass split=None.")
        with open_range(file, 0, 0, self._options) as opened:
            parts = _find_parts(opened, file.size, self._block_bytes)
            return [Block(file.path, start, stop, n, stop - start) for start, stop, n in parts]


def _find_parts(file: BinaryIO, size: int, block_bytes: int) -> Iterator[tuple[int, int, int | None]]:
    """Parts of about `block_bytes`, and how many records each has; of one with damage, that is not known."""
    place = start = n = 0
    while place < size:
        header = file.read(_HEADER_BYTES)
        length = _HEADER.unpack_from(header)[0] if len(header) == _HEADER_BYTES else size
        end = place + _HEADER_BYTES + length + _FOOTER_BYTES
        if end > size:
            yield start, size, None
            return
        if n and end - start > block_bytes:
            yield start, place, n
            start, n = place, 0
        place, n = end, n + 1
        file.seek(place)
    yield start, place, n


class _Frames(NamedTuple):
    """Some records.

    Attributes:
        place: where the content begins in its file.
        begins: where each record begins in the content.
        end: where what follows the last of them begins in the file.
        problem: what is wrong there, if anything is.
        rest: how it begins.
    """

    content: bytes
    place: int
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    end: int
    problem: str | None = None
    rest: bytes = b""


def _read_frames(file: BinaryIO, start: int, stop: int | None, most_bytes: int) -> Iterator[_Frames]:
    """The records of [start, stop), about `_PIECE_BYTES` at a time. Nothing follows a problem, unless it is a size."""
    place, left, wanted = start, b"", _PIECE_BYTES
    while True:
        most = wanted if stop is None else min(wanted, stop - place - len(left))
        more = file.read(most) if most > 0 else b""
        content = left + more if left else more
        if not content:
            return
        begins, ends, used = _find_records(content, most_bytes)
        n_sound = _n_sound(content, begins)
        if n_sound < len(begins):
            used, begins, ends = int(begins[n_sound]) - _HEADER_BYTES, begins[:n_sound], ends[:n_sound]
        left = content[used:]
        frames = _Frames(content, place, begins, ends, place + used, None, left[:_RAW_BYTES])
        place += used
        needed, problem = _needs(left, most_bytes)
        if problem is None and not more and left:
            needed = 0
            problem = "the file ends within it" if stop is None else "it goes beyond the file, or into the next block"
        yield frames._replace(problem=problem)
        if problem is not None:
            if not needed:
                return
            _pass_over(file, needed - len(left))
            place, left = place + needed, left[needed:]
            needed = 0
        wanted = max(_PIECE_BYTES, needed - len(left))


def _pass_over(file: BinaryIO, n: int) -> None:
    while n > 0 and (passed := len(file.read(min(n, _PIECE_BYTES)))):
        n -= passed


def _find_records(content: bytes, most_bytes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    begins, ends, place, size, unpack = [], [], 0, len(content), _HEADER.unpack_from
    while place + _HEADER_BYTES <= size:
        length = unpack(content, place)[0]
        end = place + _HEADER_BYTES + length
        if end + _FOOTER_BYTES > size or length > most_bytes:
            break
        begins.append(place + _HEADER_BYTES)
        ends.append(end)
        place = end + _FOOTER_BYTES
    return np.array(begins, np.int64), np.array(ends, np.int64), place


def _needs(content: bytes, most_bytes: int) -> tuple[int, str | None]:
    """How many bytes a record takes that begins like this, and what is wrong with it, if anything is."""
    if len(content) < _HEADER_BYTES:
        return _HEADER_BYTES, None
    if not _n_sound(content, np.array([_HEADER_BYTES])):
        return 0, "the checksum of its length is wrong, so nothing behind it can be found"
    length = _HEADER.unpack_from(content)[0]
    if length > most_bytes:
        problem: str | None = f"it has {length} bytes, more than max_record_bytes={most_bytes}"
    else:
        problem = None
    return _HEADER_BYTES + length + _FOOTER_BYTES, problem


def _n_sound(content: bytes, begins: npt.NDArray[np.int64]) -> int:
    """How many of these records, from the first on, have a length whose checksum is right."""
    if not len(begins):
        return 0
    headers = np.frombuffer(content, np.uint8)[begins[:, None] + np.arange(-_HEADER_BYTES, 0)]
    crc = np.full(len(begins), 0xFFFFFFFF, np.uint32)
    for i in range(_HEADER.size):
        crc = _TABLE[(crc ^ headers[:, i]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    is_wrong = _mask(~crc) != np.ascontiguousarray(headers[:, _HEADER.size :]).view("<u4")[:, 0]
    return int(is_wrong.argmax()) if is_wrong.any() else len(begins)


def _mask(crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Checksums as they are stored, so that one of data with checksums is a good one, too."""
    masked: npt.NDArray[np.uint32] = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK)
    return masked


def _make_table() -> npt.NDArray[np.uint32]:
    """The table of CRC-32C."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_TABLE = _make_table()


def _report(frames: _Frames, block: Block, on_bad: OnBad | None, i: int, problem: str) -> None:
    begin, end = int(frames.begins[i]), int(frames.ends[i])
    where = f"{block.path}, record at byte {frames.place + begin - _HEADER_BYTES}"
    skip_bad(BadRecord(where, frames.content[begin : min(end, begin + _RAW_BYTES)], problem), on_bad)
