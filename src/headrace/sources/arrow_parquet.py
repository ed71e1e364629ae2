"""Parquet files: blocks are row groups, several small ones together, large ones in parts."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.optional import import_extra
from headrace.base.world import get_worker_info
from headrace.sources.arrow_files import (
    BLOCK_BYTES,
    Part,
    check_columns,
    chunk_rows,
    for_each_file,
    join_small,
    open_for_arrow,
    table_chunks,
)
from headrace.sources.arrow_parquet_reader import ParquetReader
from headrace.sources.files import Paths, is_local, list_files
from headrace.sources.retry import Retries
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq
else:
    pa = import_extra("pyarrow", "arrow", "Reading Parquet")
    ds = import_extra("pyarrow.dataset", "arrow", "Reading Parquet")
    pq = import_extra("pyarrow.parquet", "arrow", "Reading Parquet")

_MOST_PARTS = 8  # of a row group: to reach the last part, all before it are decoded


class _Footer(NamedTuple):
    """What a file says of itself: its schema, its rows, and the row groups that have rows for us."""

    schema: pa.Schema
    n_row_groups: int
    groups: list[Part]


class _Listing(NamedTuple):
    files: dict[str, FileVersion]
    schema: pa.Schema
    n_row_groups: int
    blocks: tuple[Block, ...]


class ParquetSource:
    """Part of Parquet files.

    Blocks are row groups: small ones that follow each other are joined up to `block_bytes`, and large ones are cut into
    parts of about that size. With `filters`, row groups that the statistics rule out are left out, and the number of
    rows in a block is not known before it is read.

    Guarantees: only `columns` are read, and what `filters` needs; the footers of many files are read at the same time.

    Args:
        columns: names, in the order in which they are to come; None for all.
        filters: an expression of `pyarrow.dataset`, or pyarrow's lists of tuples: `[("label", "in", [1, 2])]`.
        block_bytes: how much of a table is a block, about, uncompressed.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        block_bytes: int = BLOCK_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        retries: Retries | None = None,
    ) -> None:
        self._paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._columns = None if columns is None else tuple(columns)
        self._filter = pq.filters_to_expression(filters) if isinstance(filters, list) else filters
        self._block_bytes = block_bytes
        self._storage_options = storage_options
        self._retries = retries
        self._known: _Listing | None = None
        self._idle: list[ParquetReader] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}  # open files stay here

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order; reads the footers of all files, once.

        Raises:
            ValueError: the files do not have the same columns.
        """
        return self._listing.blocks

    def versions(self) -> list[FileVersion]:
        return list(self._listing.files.values())

    def describe(self) -> dict[str, Any]:
        listing = self._listing
        return {
            "format": "parquet",
            "files": len(listing.files),
            "row_groups": listing.n_row_groups,
            "blocks": len(listing.blocks),
            "rows": None if self._filter is not None else sum(block.rows or 0 for block in listing.blocks),
            "columns": {field.name: str(field.type) for field in listing.schema},
            "filters": None if self._filter is None else str(self._filter),
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on, in chunks of at most a few megabytes."""
        batch_rows = chunk_rows(block.stop - block.start, block.n_bytes)
        if self._filter is not None:
            yield from self._read_filtered(block, first_row, batch_rows)
            return
        reader = self._take_reader(block.path)
        try:
            for batch in reader.read(block.start + first_row, block.stop, batch_rows):
                yield from table_chunks(batch)
        finally:
            self._idle.append(reader)

    def _read_filtered(self, block: Block, first_row: int, batch_rows: int) -> Iterator[Chunk]:
        with self._open(self._listing.files[block.path]) as file:
            fragment = ds.ParquetFileFormat().make_fragment(file)
            inside = [
                i for i, group in enumerate(_row_groups(fragment.metadata)) if block.start <= group.start < block.stop
            ]
            scanner = fragment.subset(row_group_ids=inside).scanner(
                columns=self._listing.schema.names,
                filter=self._filter,
                batch_size=batch_rows,
                use_threads=get_worker_info() is None,
            )
            for batch in scanner.to_batches():
                if first_row < batch.num_rows:
                    yield from table_chunks(batch.slice(first_row))
                first_row = max(first_row - batch.num_rows, 0)

    def _take_reader(self, path: str) -> ParquetReader:
        """A reader of this file, perhaps left by the block before; until it is given back, nobody else has it."""
        with contextlib.suppress(IndexError):
            reader = self._idle.pop()
            if reader.path == path and reader.process == os.getpid():
                return reader
        file = self._open(self._listing.files[path])
        return ParquetReader(path, file, self._listing.schema.names, ahead=not is_local(path))

    def _open(self, file: FileVersion) -> pa.NativeFile:
        return open_for_arrow(file, self._storage_options, self._retries)

    @property
    def _listing(self) -> _Listing:
        if self._known is None:
            self._known = self._list()
        return self._known

    def _list(self) -> _Listing:
        files = list_files(self._paths, self._storage_options, self._retries)
        footers = for_each_file(self._read_footer, files)
        schema = check_columns(files, [footer.schema for footer in footers], self._columns)
        blocks = tuple(
            Block(file.path, part.start, part.stop, part.n_rows if self._filter is None else None, part.n_bytes)
            for file, footer in zip(files, footers, strict=True)
            for part in self._cut(footer.groups)
        )
        return _Listing(
            {file.path: file for file in files}, schema, sum(footer.n_row_groups for footer in footers), blocks
        )

    def _read_footer(self, version: FileVersion) -> _Footer:
        with self._open(version) as file:
            fragment = ds.ParquetFileFormat().make_fragment(file)
            groups = list(_row_groups(fragment.metadata, self._columns))
            if self._filter is None:
                wanted = groups
            else:
                left = fragment.subset(filter=self._filter, schema=fragment.physical_schema)
                wanted = [groups[group.id] for group in left.row_groups]
            return _Footer(fragment.physical_schema, len(groups), wanted)

    def _cut(self, groups: list[Part]) -> list[Part]:
        if self._filter is None:
            groups = [part for group in groups for part in cut_large(group, self._block_bytes)]
        return join_small(groups, self._block_bytes)


def cut_large(group: Part, block_bytes: int) -> Iterator[Part]:
    """A row group in equal parts of about `block_bytes`, but not too many."""
    n_rows = group.stop - group.start
    n_parts = max(1, min(_MOST_PARTS, group.n_bytes // max(block_bytes, 1), n_rows))
    borders = [group.start + n_rows * i // n_parts for i in range(n_parts + 1)]
    return (Part(start, stop, stop - start, group.n_bytes // n_parts) for start, stop in itertools.pairwise(borders))


def _row_groups(metadata: pq.FileMetaData, columns: Sequence[str] | None = None) -> Iterator[Part]:
    """The rows of each row group, with the size that `columns` have in memory, about."""
    start = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        n_bytes = group.total_byte_size if columns is None else _size_of(group, frozenset(columns))
        yield Part(start, start + group.num_rows, group.num_rows, n_bytes)
        start += group.num_rows


def _size_of(group: pq.RowGroupMetaData, columns: frozenset[str]) -> int:
    leaves = (group.column(i) for i in range(group.num_columns))
    return sum(leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema.partition(".")[0] in columns)
