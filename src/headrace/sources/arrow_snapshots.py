"""Tables with versions: Delta Lake, Iceberg and Lance. The version is pinned when the table is first looked at."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, final

from headrace.base.errors import HeadraceError, RecordError
from headrace.base.optional import import_extra
from headrace.base.world import get_worker_info, keep_freed_memory
from headrace.sources.arrow_files import BLOCK_BYTES, Part, chunk_rows, join_small, table_chunks
from headrace.sources.files import is_local, open_range
from headrace.sources.options import FileOptions
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
else:
    pa = import_extra("pyarrow", "arrow", "Reading tables")
    ds = import_extra("pyarrow.dataset", "arrow", "Reading tables")

_THREADS = 16


class Snapshot(NamedTuple):
    """A table at one version.

    Attributes:
        location: of the table; states know it by that.
        fields: the types of the columns to read, by name.
        n_bytes: of its files.
        detail: what is needed to read blocks; it must be picklable.
    """

    location: str
    version: int
    fields: Mapping[str, str]
    blocks: tuple[Block, ...]
    n_files: int
    n_bytes: int
    detail: Any = None


class SnapshotSource(ABC):
    """The rows of a table at one version, which later writers do not change.

    Guarantees: workers, epochs and states stay with the version; a state of another one is refused, and names it.

    Args:
        table: its path or address.
        version: which to read; None for the latest.
        columns: names, in the order in which they are to come; None for all.

    Raises:
        MissingExtraError: the library for this kind of table is not installed.
    """

    format: str
    is_plain = True  # see `FileSource`
    tells_rows = True

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        options: FileOptions | None = None,
    ) -> None:
        if isinstance(columns, str):
            raise TypeError(f"`columns` must be a list of names, got {columns!r}: pass [{columns!r}].")
        self._table = os.fspath(table)
        self._version = version
        self._columns = None if columns is None else list(columns)
        self._options = options or FileOptions()
        self._block_bytes = self._options.block_bytes or BLOCK_BYTES
        self._known: Snapshot | None = None

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order."""
        return self._snapshot.blocks

    def versions(self) -> list[FileVersion]:
        """The table as one file, at its version."""
        return [FileVersion(self._snapshot.location, None, str(self._snapshot.version))]

    def describe(self) -> dict[str, Any]:
        snapshot = self._snapshot
        counts = [block.rows for block in snapshot.blocks]
        return {
            "format": self.format,
            "version": snapshot.version,
            "files": snapshot.n_files,
            "bytes": snapshot.n_bytes,
            "blocks": len(snapshot.blocks),
            "rows": None if None in counts else sum(filter(None, counts)),
            "columns": dict(snapshot.fields),
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on.

        Raises:
            RecordError: a file of the table is missing or damaged.
        """
        with self._reporting(block.path):
            yield from table_chunks(self._batches(block), first_row)

    @abstractmethod
    def _look(self) -> Snapshot:
        """The table at the version that is wanted."""

    @abstractmethod
    def _batches(self, block: Block) -> Iterator[pa.RecordBatch]:
        """The rows of a block."""

    @property
    def _snapshot(self) -> Snapshot:
        if self._known is None:
            keep_freed_memory()
            with self._reporting(self._table):
                self._known = self._look()
        return self._known

    def _pick(self, fields: Mapping[str, str]) -> dict[str, str]:
        if missing := [name for name in self._columns or () if name not in fields]:
            raise ValueError(f"`columns` must be columns of {self._table!r}, {list(fields)}, got {missing}.")
        return {name: fields[name] for name in self._columns or fields}

    @contextmanager
    def _reporting(self, path: str) -> Iterator[None]:
        """The library's errors as ours, with the table and the file."""
        try:
            yield
        except (HeadraceError, TypeError, ImportError):
            raise
        except ValueError as error:
            if not isinstance(error, pa.ArrowException):
                raise
            raise RecordError(f"{path}, of the {self.format} table {self._table!r}, is damaged: {error}") from error
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise RecordError(
                f"{path}, of the {self.format} table {self._table!r}, cannot be read: {problem}"
            ) from error


@final
class DeltaSource(SnapshotSource):
    """Rows of a Delta Lake table: blocks are row groups of its Parquet files, small ones joined."""

    format = "delta"

    def _look(self) -> Snapshot:
        library = import_extra("deltalake", "delta", "Reading Delta Lake tables")
        stored = {key: str(value) for key, value in (self._options.storage_options or {}).items()}
        table = library.DeltaTable(self._table, version=self._version, storage_options=stored or None)
        dataset = table.to_pyarrow_dataset()  # refuses tables with features that it cannot read
        root = (self._table if is_local(self._table) else table.table_uri).removeprefix("file://").rstrip("/")
        files = {f"{root}/{each.path}": each.partition_expression for each in dataset.get_fragments()}
        fields = self._pick({field.name: str(field.type) for field in dataset.schema})
        with ThreadPoolExecutor(min(_THREADS, len(files) or 1)) as threads:
            parts = dict(zip(files, threads.map(self._row_groups, files), strict=True))
        blocks = tuple(
            Block(path, part.start, part.stop, part.n_rows, part.n_bytes)
            for path, groups in parts.items()
            for part in join_small(groups, self._block_bytes)
        )
        n_bytes = sum(part.n_bytes for groups in parts.values() for part in groups)
        return Snapshot(self._table, table.version(), fields, blocks, len(files), n_bytes, (dataset.schema, files))

    def _open(self, path: str) -> Any:
        return pa.OSFile(path) if is_local(path) else pa.PythonFile(open_range(path, 0, 0, self._options))

    def _row_groups(self, path: str) -> list[Part]:
        with self._reporting(path), self._open(path) as opened:
            metadata = ds.ParquetFileFormat().make_fragment(opened).metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            return [Part(i, i + 1, group.num_rows, group.total_byte_size) for i, group in enumerate(groups)]

    def _batches(self, block: Block) -> Iterator[pa.RecordBatch]:
        schema, files = self._snapshot.detail
        with self._open(block.path) as opened:
            fragment = ds.ParquetFileFormat().make_fragment(opened, partition_expression=files[block.path])
            scanner = fragment.subset(row_group_ids=list(range(block.start, block.stop))).scanner(
                schema=schema,
                columns=list(self._snapshot.fields),
                batch_size=chunk_rows(block.rows or 1, block.n_bytes),
                use_threads=get_worker_info() is None,
            )
            yield from scanner.to_batches()


@final
class IcebergSource(SnapshotSource):
    """Rows of an Iceberg table: blocks are its data files, without the rows that were deleted."""

    format = "iceberg"

    def _look(self) -> Snapshot:
        table = self._open()
        snapshot = table.snapshot_by_id(self._version) if self._version is not None else table.current_snapshot()
        if snapshot is None and self._version is not None:
            known = [each.snapshot_id for each in table.snapshots()]
            raise ValueError(f"version must be a snapshot of {self._table!r}, {known}, got {self._version}.")
        if snapshot is None:  # a table that nothing was ever written to
            return Snapshot(table.location(), 0, {}, (), 0, 0)
        scan = self._scan(table, snapshot.snapshot_id)
        fields = self._pick({field.name: str(field.field_type) for field in scan.projection().fields})
        tasks = list(scan.plan_files())
        blocks = tuple(
            Block(
                task.file.file_path,
                i,
                i + 1,
                None if task.delete_files else task.file.record_count,
                task.file.file_size_in_bytes,
            )
            for i, task in enumerate(tasks)
        )
        n_bytes = sum(task.file.file_size_in_bytes for task in tasks)
        return Snapshot(table.location(), snapshot.snapshot_id, fields, blocks, len(tasks), n_bytes, tasks)

    def _open(self) -> Any:
        tables = import_extra("pyiceberg.table", "iceberg", "Reading Iceberg tables")
        return tables.StaticTable.from_metadata(self._table, dict(self._options.storage_options or {}))

    def _scan(self, table: Any, snapshot_id: int) -> Any:
        return table.scan(selected_fields=tuple(self._columns or ("*",)), snapshot_id=snapshot_id)

    def _batches(self, block: Block) -> Iterator[pa.RecordBatch]:
        reading = import_extra("pyiceberg.io.pyarrow", "iceberg", "Reading Iceberg tables")
        everything = import_extra("pyiceberg.expressions", "iceberg", "Reading Iceberg tables").AlwaysTrue()
        table, snapshot = self._open(), self._snapshot
        projection = self._scan(table, snapshot.version).projection()
        scan = reading.ArrowScan(table.metadata, table.io, projection, everything)
        for batch in scan.to_record_batches([snapshot.detail[block.start]]):
            yield batch.select(list(snapshot.fields))


@final
class LanceSource(SnapshotSource):
    """Rows of a Lance dataset: blocks are parts of its fragments, without the rows that were deleted."""

    format = "lance"

    def __init__(self, table: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(table, **options)
        self._opened: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # a dataset is of its own process

    def _look(self) -> Snapshot:
        dataset = self._open(self._version)
        fields = self._pick({field.name: str(field.type) for field in dataset.schema})
        fragments = [(each.fragment_id, each.count_rows()) for each in dataset.get_fragments()]
        sizes = {
            each.fragment_id: sum(file.file_size_bytes or 0 for file in each.metadata.files)
            for each in dataset.get_fragments()
        }
        blocks = tuple(
            Block(f"{self._table}, fragment {number}", (number, start), (number, stop), stop - start, n_bytes)
            for number, n_rows in fragments
            for start, stop, n_bytes in _cut_rows(n_rows, sizes[number], self._block_bytes)
        )
        return Snapshot(self._table, dataset.version, fields, blocks, len(fragments), sum(sizes.values()))

    def _open(self, version: int | None) -> Any:
        if self._opened is None or self._opened[0] != os.getpid():
            library = import_extra("lance", "lance", "Reading Lance datasets")
            stored = {key: str(value) for key, value in (self._options.storage_options or {}).items()}
            self._opened = os.getpid(), library.dataset(self._table, version=version, storage_options=stored or None)
        return self._opened[1]

    def _batches(self, block: Block) -> Iterator[pa.RecordBatch]:
        (number, start), (_, stop) = block.start, block.stop
        fragment = self._open(self._snapshot.version).get_fragment(number)
        n = chunk_rows(stop - start, block.n_bytes)
        columns = list(self._snapshot.fields)
        yield from fragment.scanner(columns=columns, offset=start, limit=stop - start, batch_size=n).to_batches()


def _cut_rows(n_rows: int, n_bytes: int, block_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Parts of about `block_bytes`: their first row, the one behind their last, and their size."""
    n = max(1, min(n_rows, round(n_bytes / block_bytes)))
    borders = [n_rows * i // n for i in range(n + 1)]
    return ((a, b, n_bytes * (b - a) // n_rows) for a, b in pairwise(borders) if b > a)
