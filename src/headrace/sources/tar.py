"""Tar archives of samples, in WebDataset's naming; cut at borders of samples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO

from headrace.base.freed_memory import keep_freed_memory
from headrace.sources.access import Access
from headrace.sources.chunks import skip_rows
from headrace.sources.compression import codec_by_name, is_compressed
from headrace.sources.files import Paths, is_local, list_files, open_range, open_stream
from headrace.sources.records import SampleChunk
from headrace.sources.source import BadRecord, Block, Chunk, FileVersion, OnBad, leave_out
from headrace.sources.tar_decoders import DECODERS, Decoder, SampleDecoder
from headrace.sources.tar_samples import Piece, RawSamples, as_text, cut_archive, read_samples
from headrace.sources.tar_window import ArchiveWindow

BLOCK_BYTES = 8 << 20
MAX_RECORD_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20  # before decoding
_RAW_BYTES = 4096  # of a bad record, to show
_THREADS = 8


class TarSource:
    """Samples of tar archives: dicts with the key of the sample as `__key__`, and a value for each of its members.

    Blocks are about `block_bytes` of an archive, found by a look at its headers. Where the archive is compressed, or
    far away, so that this look would cost about as much as reading it, the whole archive is a block.

    Guarantees: nothing is written to disk, whatever the names of members are; only regular files are read, and nothing
    is unpickled unless `decode` says so. At most `max_record_bytes` are held for a sample.

    Args:
        decode: True decodes by extension what `DECODERS` names, False leaves all members as bytes. A dict has decoders
            for more fields, or other ones, by name (`seg.png`) or its last part (`png`); None leaves a field as bytes:
            `{"pkl": pickle.loads, "jpg": None}`.
        split: whether to cut archives into blocks; None cuts those that are local and not compressed.
        block_bytes: how long a block is, about.

    Raises:
        ValueError: `split=True` for a compressed archive.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        decode: bool | Mapping[str, Decoder | None] = True,
        split: bool | None = None,
        block_bytes: int = BLOCK_BYTES,
        max_record_bytes: int = MAX_RECORD_BYTES,
        access: Access | None = None,
    ) -> None:
        self._paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._decoders = {} if decode is False else {**DECODERS, **({} if decode is True else decode)}
        self._split = split
        self._block_bytes = block_bytes
        self._max_record_bytes = max_record_bytes
        self._access = access
        self._files: dict[str, FileVersion] | None = None
        self._blocks: tuple[Block, ...] | None = None

    def versions(self) -> list[FileVersion]:
        return list(self._by_path.values())

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order; the headers of local archives are read once."""
        if self._blocks is None:
            keep_freed_memory()  # here, too: this process gets the samples that workers read
            files = self.versions()
            with ThreadPoolExecutor(min(_THREADS, len(files) or 1)) as threads:
                self._blocks = tuple(block for blocks in threads.map(self._cut, files) for block in blocks)
        return self._blocks

    def describe(self) -> dict[str, Any]:
        blocks, files = self.blocks(), self.versions()
        sizes = [file.size for file in files]
        return {
            "format": "tar",
            "files": len(files),
            "bytes": None if None in sizes else sum(filter(None, sizes)),
            "blocks": len(blocks),
            "compression": sorted({codec for file in files if (codec := codec_by_name(file.path))}),
            "rows": None if any(block.rows is None for block in blocks) else sum(block.rows or 0 for block in blocks),
            "decoded": sorted(self._decoders),
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The samples of a block from `first_row` on.

        Raises:
            RecordError: a sample cannot be decoded, has a field twice, is too large, or the archive is damaged; and
                `on_bad` is None.
        """
        # Which samples are bad shows only when they are decoded. If none may be, those before are passed over unseen.
        unseen, seen = (first_row, 0) if on_bad is None else (0, first_row)
        return skip_rows(self._chunks(block, unseen, on_bad), seen)

    def _chunks(self, block: Block, first: int, on_bad: OnBad | None) -> Iterator[SampleChunk]:
        samples: list[dict[str, Any]] = []
        n_bytes = 0
        for size, more in self._good_samples(block, first, on_bad):
            if n_bytes + size > _CHUNK_BYTES and samples:
                yield SampleChunk(samples)
                samples, n_bytes = [], 0
            samples += more
            n_bytes += size
        if samples:
            yield SampleChunk(samples)

    def _good_samples(
        self, block: Block, first: int, on_bad: OnBad | None
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """The samples that can be decoded, some at a time, with the size of their members."""
        keep_freed_memory()
        decode = SampleDecoder(self._decoders)
        piece = Piece(block.start, block.stop, block.rows or 0)
        with self._open(self._by_path[block.path], block.start, block.stop) as file:
            window = ArchiveWindow(file, block.start, block.stop)
            for raw in read_samples(window, piece, first, self._max_record_bytes):
                tell = partial(_tell, on_bad, block, raw)
                if raw.problem is not None:
                    tell(0, raw.problem, raw.found)
                else:
                    yield raw.n_bytes, decode(raw, tell)

    @property
    def _by_path(self) -> dict[str, FileVersion]:
        if self._files is None:
            files = list_files(self._paths, self._access)
            self._files = {file.path: file for file in files}
        return self._files

    def _open(self, file: FileVersion, start: int, stop: int | None) -> BinaryIO:
        if is_compressed(file.path):
            return open_stream(file, self._access)
        return open_range(file, start, stop, self._access)

    def _cut(self, file: FileVersion) -> list[Block]:
        split = is_local(file.path) and not is_compressed(file.path) if self._split is None else self._split
        if not split:
            return [Block(file.path, 0, None, n_bytes=file.size or 0)]
        if is_compressed(file.path):
            raise ValueError(f"A compressed archive cannot be cut, got {file.path!r}. Unpack it, or pass split=None.")
        with self._open(file, 0, 0) as archive:
            pieces = cut_archive(ArchiveWindow(archive), self._block_bytes)
        return [
            Block(file.path, piece.start, piece.stop, piece.n_samples, (piece.stop or file.size or 0) - piece.start)
            for piece in pieces
        ]


def _tell(on_bad: OnBad | None, block: Block, raw: RawSamples, i: int, problem: str, content: bytes) -> None:
    """Tell what is wrong with sample `i` of these; before the first one, it is the archive."""
    sample = f", sample {as_text(raw.keys[i])!r} at byte {raw.starts[i]}" if raw.keys[i] else ""
    leave_out(BadRecord(block.path + sample, content[:_RAW_BYTES], problem), on_bad)
