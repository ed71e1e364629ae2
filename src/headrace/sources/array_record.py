"""ArrayRecord files, as Grain reads them, through their own package."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import Any, final

from headrace.base.errors import RecordError
from headrace.base.optional import import_extra
from headrace.sources.chunks import ObjectChunk
from headrace.sources.files import Paths, check_unchanged, is_local, list_files
from headrace.sources.options import FileOptions
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

_BLOCK_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20


@final
class ArrayRecordSource:
    """Records of local ArrayRecord files, as bytes. Blocks are ranges of records of about `block_bytes`.

    Raises:
        MissingExtraError: array-record is not installed.
    """

    format = "array_record"
    is_plain = True  # see `FileSource`
    tells_rows = True

    def __init__(self, paths: Paths, *, options: FileOptions | None = None) -> None:
        self._paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._options = options or FileOptions()
        self._files: dict[str, FileVersion] | None = None
        self._blocks: tuple[Block, ...] | None = None

    def versions(self) -> list[FileVersion]:
        """The files.

        Raises:
            ValueError: one is not local, which the package cannot read.
        """
        if self._files is None:
            files = list_files(self._paths, self._options)
            if far := [file.path for file in files if not is_local(file.path)]:
                raise ValueError(f"ArrayRecord files must be local, got {far[0]!r}. Copy them first.")
            self._files = {file.path: file for file in files}
        return list(self._files.values())

    def blocks(self) -> Sequence[Block]:
        if self._blocks is None:
            self._blocks = tuple(block for file in self.versions() for block in self._cut(file))
        return self._blocks

    def describe(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "files": len(self.versions()),
            "bytes": sum(file.size or 0 for file in self.versions()),
            "blocks": len(self.blocks()),
            "rows": sum(block.rows or 0 for block in self.blocks()),
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The records of a block from `first_row` on.

        Raises:
            RecordError: the file is damaged.
        """
        at_once = max(1, _CHUNK_BYTES * (block.stop - block.start) // max(block.n_bytes, 1))
        with closing(self._open(block.path)) as reader:
            for start in range(block.start + first_row, block.stop, at_once):
                yield ObjectChunk(self._read(reader, block.path, start, min(start + at_once, block.stop)), "record")
        check_unchanged({file.path: file for file in self.versions()}[block.path])

    def _read(self, reader: Any, path: str, start: int, stop: int) -> list[bytes]:
        try:
            records: list[bytes] = reader.read(start, stop)
        except (RuntimeError, ValueError, IndexError) as error:
            raise RecordError(f"{path}, records {start} to {stop}, is damaged: {error}.") from error
        return records

    def _open(self, path: str) -> Any:
        library = import_extra("array_record.python.array_record_module", "array-record", "Reading ArrayRecord files")
        reader = library.ArrayRecordReader(path.removeprefix("file://"))
        try:
            reader.num_records()
        except (RuntimeError, ValueError) as error:
            raise RecordError(f"{path} is damaged, or no ArrayRecord file: {error}.") from error
        if not reader.ok():
            with suppress(RuntimeError):
                reader.close()
            raise RecordError(f"{path} is damaged, or no ArrayRecord file.")
        return reader

    def _cut(self, file: FileVersion) -> list[Block]:
        with closing(self._open(file.path)) as reader:
            n = reader.num_records()
        size, block_bytes = file.size or 0, self._options.block_bytes or _BLOCK_BYTES
        n_blocks = max(1, min(n, round(size / block_bytes)))
        borders = [n * i // n_blocks for i in range(n_blocks + 1)]
        return [Block(file.path, a, b, b - a, size * (b - a) // n) for a, b in pairwise(borders) if b > a]
