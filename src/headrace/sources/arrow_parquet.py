"""Parquet files: blocks are row groups, several small ones together, large ones in parts."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import operator
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

from headrace.base.errors import RecordError
from headrace.base.optional import import_extra
from headrace.base.world import get_worker_info
from headrace.sources.arrow_files import PATH_TYPES, Contents, Part, TableSource, check_names, chunk_rows, table_chunks
from headrace.sources.files import Paths, check_unchanged, is_local
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq
else:
    pq = import_extra("pyarrow.parquet", "arrow", "Reading Parquet")
    pa = import_extra("pyarrow", "arrow", "Reading Parquet")
    ds = import_extra("pyarrow.dataset", "arrow", "Reading Parquet")

_BUFFER_BYTES = 1 << 20
_MOST_FOR_THREADS = 0.75  # of the bytes in one column: threads, which take a column each, would wait for that one


class ParquetReader:
    """An open Parquet file, and how far it has been read.

    Rows within a row group can be reached only by decoding those before them. So whoever reads the parts of a row group
    one after the other should do so with one reader.
    """

    def __init__(self, path: str, file: Any, columns: Sequence[str], *, ahead: bool) -> None:
        """Open a file.

        Args:
            ahead: read whole row groups at once, in few requests, instead of little by little.
        """
        self.path = path
        self.process = os.getpid()
        self._file = pq.ParquetFile(file, pre_buffer=ahead, buffer_size=0 if ahead else _BUFFER_BYTES)
        self._columns = list(columns)
        metadata = self._file.metadata
        sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        self._borders = list(itertools.accumulate(sizes, initial=0))
        self._use_threads = get_worker_info() is None and _may_be_even(self._file.schema_arrow, columns)
        self._is_sound = get_worker_info() is not None  # if so, nobody asks for the sizes of columns
        self._row = self._end = 0  # the rows that come next, if nothing is sought: from `_held` first, then `_batches`
        self._held: pa.RecordBatch | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def read(self, start: int, stop: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows [start, stop), in batches of about `batch_rows`."""
        if not self._leads_to(start):
            self._seek(start, stop, batch_rows)
        while self._row < stop:
            batch = self._next(stop) if self._held is None else self._held
            skipped, taken = max(start - self._row, 0), min(stop - self._row, batch.num_rows)
            self._held = batch.slice(taken) if taken < batch.num_rows else None
            self._row += taken
            if skipped < taken:
                yield batch.slice(skipped, taken - skipped).select(self._columns)
        if self._row == self._end:
            self._batches = iter(())  # which would keep memory

    def _next(self, stop: int) -> pa.RecordBatch:
        batch = next(self._batches, None)
        if batch is None:
            raise RecordError(f"{self.path} is damaged: it ends before row {stop}, of which its footer tells.")
        if not self._is_sound:
            # Only now: of a damaged footer, pyarrow's readers raise, but its column metadata ends the process.
            self._use_threads = _largest_share(self._file.metadata, self._columns) <= _MOST_FOR_THREADS
            self._is_sound = True
        return batch

    def _leads_to(self, row: int) -> bool:
        """Whether to read on is the way to a row: later in the same row group."""
        return self._row <= row < self._end and self._group(self._row) == self._group(row)

    def _seek(self, start: int, stop: int, batch_rows: int) -> None:
        first, last = self._group(start), self._group(stop - 1)
        groups = range(first, last + 1)
        self._batches = self._file.iter_batches(batch_rows, groups, self._columns, use_threads=self._use_threads)
        self._row, self._end, self._held = self._borders[first], self._borders[last + 1], None

    def _group(self, row: int) -> int:
        return bisect.bisect_right(self._borders, row) - 1


def _may_be_even(schema: pa.Schema, columns: Sequence[str]) -> bool:
    """Whether no column is likely to be larger than all others together: a guess by their types."""
    wanted = frozenset(columns)
    lengths = [_is_long(field.type) for field in schema if field.name in wanted]
    return len(lengths) > 1 and lengths.count(True) != 1


def _is_long(kind: pa.DataType) -> bool:
    return not pa.types.is_primitive(kind) and not pa.types.is_null(kind)


def _largest_share(metadata: pq.FileMetaData, columns: Sequence[str]) -> float:
    """Which part of the first row group the largest of these columns is."""
    if not metadata.num_row_groups:
        return 1.0
    group = metadata.row_group(0)
    leaves = (group.column(i) for i in range(group.num_columns))
    sizes = [leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema.partition(".")[0] in columns]
    return float(max(sizes, default=1) / max(sum(sizes), 1))


_MOST_PARTS = 8  # of a row group: to reach the last part, all before it are decoded


@final
class ParquetSource(TableSource):
    """Rows of Parquet files.

    Blocks are row groups: small ones that follow each other are joined up to `block_bytes`, and large ones are cut into
    parts of about that size. With `filters`, row groups that the statistics rule out are left out, and the number of
    rows in a block is not known before it is read.

    Guarantees: only `columns` are read, and what `filters` needs; the footers of many files are read at the same time.

    Args:
        filters: an expression of `pyarrow.dataset`, or pyarrow's lists of tuples: `[("label", "in", [1, 2])]`.
    """

    format = "parquet"
    unit = "row_groups"

    def __init__(self, paths: Paths, *, filters: Any = None, **options: Any) -> None:
        super().__init__(paths, **options)
        self._filter = pq.filters_to_expression(filters) if isinstance(filters, list) else filters
        self._idle: list[ParquetReader] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}  # open files stay here

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "filters": None if self._filter is None else str(self._filter)}

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on, in chunks of at most a few megabytes.

        Raises:
            RecordError: the file is damaged.
        """
        self._check(block)
        batch_rows = chunk_rows(block.stop - block.start, block.n_bytes)
        with self._reporting_damage(self._listing.files[block.path]):
            if self._filter is not None:
                yield from table_chunks(self._complete(self._filtered(block, batch_rows), block), first_row)
                return
            reader = self._take_reader(block.path)
            batches = reader.read(block.start + first_row, block.stop, batch_rows)
            yield from table_chunks(self._complete(batches, block))
            self._idle.append(reader)  # which is not left half-way
        check_unchanged(self._listing.files[block.path])

    def _filtered(self, block: Block, batch_rows: int) -> Iterator[pa.RecordBatch]:
        with self._open(self._listing.files[block.path]) as file:
            fragment = self._fragment(self._listing.files[block.path], file)
            inside = [
                i for i, group in enumerate(_row_groups(fragment.metadata)) if block.start <= group.start < block.stop
            ]
            scanner = fragment.subset(row_group_ids=inside).scanner(
                schema=self._schema_to_filter(fragment),
                columns=self._listing.schema.names,
                filter=self._filter,
                batch_size=batch_rows,
                use_threads=get_worker_info() is None,
            )
            yield from scanner.to_batches()

    def _fragment(self, file: FileVersion, opened: Any) -> ds.ParquetFileFragment:
        """A file, and what its folders say of all its rows."""
        files = ds.ParquetFileFormat()
        fragment, values = files.make_fragment(opened), self._path_columns.values(file.path)
        own = set(fragment.physical_schema.names) if values else ()
        facts = [_equals(name, value) for name, value in values.items() if name not in own]
        if not facts:
            return fragment
        return files.make_fragment(opened, partition_expression=functools.reduce(operator.and_, facts))

    def _schema_to_filter(self, fragment: ds.ParquetFileFragment) -> pa.Schema:
        """The columns of a file and of its folders."""
        own, types = fragment.physical_schema, self._path_columns.types
        more = [pa.field(name, PATH_TYPES[kind]) for name, kind in types.items() if name not in own.names]
        return pa.schema([*own, *more])

    def _take_reader(self, path: str) -> ParquetReader:
        """A reader of this file, possibly an idle one; it is not shared until it is returned.

        Raises:
            ChangedFileError: it is not the file that was listed.
        """
        check_unchanged(self._listing.files[path])
        with contextlib.suppress(IndexError):
            reader = self._idle.pop()
            if reader.path == path and reader.process == os.getpid():
                return reader
        file = self._open(self._listing.files[path])
        return ParquetReader(path, file, self._listing.schema.names, ahead=not is_local(path))

    def _look(self, file: FileVersion) -> Contents:
        with self._reporting_damage(file), self._open(file) as opened:
            fragment = self._fragment(file, opened)
            groups = list(_row_groups(fragment.metadata, self._columns))
            if self._filter is None:
                parts = [part for group in groups for part in cut_large(group, self._block_bytes)]
            else:
                left = fragment.subset(filter=self._filter, schema=self._schema_to_filter(fragment))
                parts = [groups[group.id]._replace(n_rows=None) for group in left.row_groups]
            return Contents(check_names(fragment.physical_schema), len(groups), parts)


def _equals(name: str, value: Any) -> ds.Expression:
    return ds.field(name).is_null() if value is None else ds.field(name) == value


def cut_large(group: Part, block_bytes: int) -> Iterator[Part]:
    """A row group in equal parts of about `block_bytes`, but not too many."""
    n_rows = group.n_rows or 0
    n_parts = max(1, min(_MOST_PARTS, group.n_bytes // max(block_bytes, 1), n_rows))
    borders = [group.start + n_rows * i // n_parts for i in range(n_parts + 1)]
    return (Part(start, stop, stop - start, group.n_bytes // n_parts) for start, stop in itertools.pairwise(borders))


def _row_groups(metadata: pq.FileMetaData, columns: Sequence[str] | None = None) -> Iterator[Part]:
    """The rows of each row group, with the size that `columns` take in memory, approximately."""
    start = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        n_bytes = group.total_byte_size if columns is None else _size_of(group, frozenset(columns))
        yield Part(start, start + group.num_rows, group.num_rows, n_bytes)
        start += group.num_rows


def _size_of(group: pq.RowGroupMetaData, columns: frozenset[str]) -> int:
    leaves = (group.column(i) for i in range(group.num_columns))
    return sum(leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema.partition(".")[0] in columns)
