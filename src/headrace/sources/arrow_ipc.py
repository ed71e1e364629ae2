"""Arrow's own files: IPC files, which Feather is too, whose blocks are record batches; IPC streams, one block each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.optional import import_extra
from headrace.sources.arrow_files import (
    BLOCK_BYTES,
    Part,
    check_columns,
    for_each_file,
    join_small,
    open_for_arrow,
    table_chunks,
)
from headrace.sources.compression import is_compressed
from headrace.sources.errors import RecordError
from headrace.sources.files import Paths, is_local, list_files, open_stream
from headrace.sources.retry import Retries
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.ipc as ipc
else:
    pa = import_extra("pyarrow", "arrow", "Reading Arrow files")
    ipc = import_extra("pyarrow.ipc", "arrow", "Reading Arrow files")

_MAGIC = b"ARROW1"


class _Contents(NamedTuple):
    """What a file says of itself: its schema and its record batches; None for a stream, which has no index."""

    schema: pa.Schema
    batches: list[Part] | None


class _Listing(NamedTuple):
    files: dict[str, FileVersion]
    schema: pa.Schema
    n_streams: int
    blocks: tuple[Block, ...]


class ArrowSource:
    """Rows of Arrow files: the file format, which Feather is too, and the stream format.

    Blocks of a file are its record batches; small ones that follow each other are joined up to `block_bytes`. A stream,
    which may be compressed as a whole, is one block. How many rows a block has is known for local files that are not
    streams. Those are mapped into memory: they must not be changed in place while they are read.

    Args:
        columns: names, in the order in which they are to come; None for all.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        block_bytes: int = BLOCK_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        retries: Retries | None = None,
    ) -> None:
        self._paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._columns = None if columns is None else tuple(columns)
        self._block_bytes = block_bytes
        self._storage_options = storage_options
        self._retries = retries
        self._known: _Listing | None = None

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order; looks into each file once.

        Raises:
            ValueError: the files do not have the same columns.
            RecordError: a file is no Arrow file.
        """
        return self._listing.blocks

    def versions(self) -> list[FileVersion]:
        return list(self._listing.files.values())

    def describe(self) -> dict[str, Any]:
        listing = self._listing
        counts = [block.rows for block in listing.blocks]
        return {
            "format": "arrow",
            "files": len(listing.files),
            "streams": listing.n_streams,
            "blocks": len(listing.blocks),
            "rows": None if None in counts else sum(filter(None, counts)),
            "columns": {field.name: str(field.type) for field in listing.schema},
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on, in chunks of at most a few megabytes.

        Raises:
            RecordError: the file is damaged.
        """
        names = self._listing.schema.names
        for batch in self._batches(block):
            if first_row < batch.num_rows:
                yield from table_chunks(batch.slice(first_row).select(names))
            first_row = max(first_row - batch.num_rows, 0)

    def _batches(self, block: Block) -> Iterator[pa.RecordBatch]:
        file = self._listing.files[block.path]
        with _telling_damage(file), self._open(file) as opened:
            if block.stop is None:
                yield from ipc.open_stream(opened)
            else:
                reader = _open_file(opened, self._columns)
                yield from map(reader.get_batch, range(block.start, block.stop))

    def _open(self, file: FileVersion) -> Any:
        if is_compressed(file.path):
            return open_stream(file, self._storage_options, self._retries)
        return open_for_arrow(file, self._storage_options, self._retries, mapped=True)

    @property
    def _listing(self) -> _Listing:
        if self._known is None:
            self._known = self._list()
        return self._known

    def _list(self) -> _Listing:
        files = list_files(self._paths, self._storage_options, self._retries)
        contents = for_each_file(self._look, files)
        schema = check_columns(files, [content.schema for content in contents], self._columns)
        blocks = tuple(
            block
            for file, content in zip(files, contents, strict=True)
            for block in _cut(file, content, self._block_bytes)
        )
        n_streams = sum(content.batches is None for content in contents)
        return _Listing({file.path: file for file in files}, schema, n_streams, blocks)

    def _look(self, file: FileVersion) -> _Contents:
        with _telling_damage(file), self._open(file) as opened:
            if is_compressed(file.path):
                return _Contents(ipc.open_stream(opened).schema, None)
            is_file = opened.read(len(_MAGIC)) == _MAGIC
            opened.seek(0)
            if not is_file:
                return _Contents(ipc.open_stream(opened).schema, None)
            reader = ipc.open_file(opened)
            return _Contents(reader.schema, _find_batches(file, opened, reader.num_record_batches))


def _find_batches(file: FileVersion, opened: pa.NativeFile, n: int) -> list[Part]:
    """The record batches of a file. How many rows they have is asked of mapped files only: nothing is read for it."""
    if not is_local(file.path):
        return [Part(i, i + 1, None, (file.size or 0) // n) for i in range(n)]
    one_column = ipc.open_file(opened, options=ipc.IpcReadOptions(included_fields=[0]))  # others stay compressed
    counts = [one_column.get_batch(i).num_rows for i in range(n)]
    total = sum(counts) or 1
    return [Part(i, i + 1, count, (file.size or 0) * count // total) for i, count in enumerate(counts)]


def _cut(file: FileVersion, contents: _Contents, block_bytes: int) -> list[Block]:
    if contents.batches is None:
        return [Block(file.path, 0, None, n_bytes=file.size or 0)]
    parts = join_small(contents.batches, block_bytes)
    return [Block(file.path, part.start, part.stop, part.n_rows, part.n_bytes) for part in parts]


def _open_file(opened: pa.NativeFile, columns: Sequence[str] | None) -> ipc.RecordBatchFileReader:
    reader = ipc.open_file(opened)
    if columns is None:
        return reader
    wanted = sorted(reader.schema.get_field_index(name) for name in columns)
    return ipc.open_file(opened, options=ipc.IpcReadOptions(included_fields=wanted))


@contextmanager
def _telling_damage(file: FileVersion) -> Iterator[None]:
    """Arrow's errors about content as ours; those about files have a number, and pass."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None) is not None or isinstance(error, HeadraceError):
            raise
        raise RecordError(f"{file.path} is damaged, or no Arrow file: {error}") from error
