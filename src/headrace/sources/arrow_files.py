"""What sources of files of tables have in common: the files, their columns, and how they are cut and opened."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.errors import HeadraceError, RecordError
from headrace.base.optional import import_extra
from headrace.base.world import keep_freed_memory
from headrace.sources.arrow import check_values, table_chunk
from headrace.sources.chunks import ColumnChunk
from headrace.sources.files import Paths, check_unchanged, is_local, list_files, open_range
from headrace.sources.options import FileOptions
from headrace.sources.path_columns import PathColumns, find_path_columns
from headrace.sources.source import Block, Chunk, FileVersion, OnBad

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = import_extra("pyarrow", "arrow", "Reading tables")

BLOCK_BYTES = 8 << 20
CHUNK_BYTES = 2 << 20
_MOST_CHUNK_ROWS = 1 << 14
_THREADS = 16
PATH_TYPES = {"int": pa.int32(), "str": pa.string()}


class Part(NamedTuple):
    """A part of a file, [start, stop) in rows or in record batches; `stop` is None if the file cannot be cut.

    Attributes:
        n_rows: how many rows it has, if that is known.
        n_bytes: approximately how much memory they take.
    """

    start: int
    stop: int | None
    n_rows: int | None
    n_bytes: int


_DAMAGED = Part(0, 0, None, 0)
"""Of a file: all of it."""


class Contents(NamedTuple):
    """What a file says of itself: its schema, in how many units it is written, and the parts that are to be read."""

    schema: pa.Schema
    n_units: int
    parts: Sequence[Part]


class Listing(NamedTuple):
    """All files.

    Attributes:
        schema: of the columns that are read of files.
        full_schema: the same with the columns of folders, in the order in which they come.
    """

    files: dict[str, FileVersion]
    schema: pa.Schema
    full_schema: pa.Schema
    n_units: int
    blocks: tuple[Block, ...]


class TableSource(ABC):
    """A source of files of tables, all with the same columns. They are listed and looked into once, in threads.

    Args:
        columns: names, in the order in which they are to come; None for all.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    format: str
    unit: str
    """What files are written in: the plural, for people."""
    is_plain = True  # see `FileSource`
    tells_rows = True
    """Whether the row counts of blocks can be relied on: a block with another number of rows is an error."""

    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        options: FileOptions | None = None,
    ) -> None:
        self._paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        if isinstance(columns, str):
            raise TypeError(f"`columns` must be a list of names, got {columns!r}: pass [{columns!r}].")
        if columns is not None and not len(columns):
            raise ValueError("`columns` must name at least one column, got none; pass None for all.")
        if doubles := sorted(name for name, count in Counter(() if columns is None else columns).items() if count > 1):
            raise ValueError(f"`columns` must name each column once, got {doubles} more than once.")
        self._columns = None if columns is None else tuple(columns)
        self._options = options or FileOptions()
        self._block_bytes = self._options.block_bytes or BLOCK_BYTES
        self._is_lenient = False
        self._path_columns = PathColumns()
        self._known: Listing | None = None

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order; looks into each file once.

        Raises:
            ValueError: the files do not have the same columns.
            RecordError: a file is not what it should be.
        """
        return self._listing.blocks

    def versions(self) -> list[FileVersion]:
        return list(self._listing.files.values())

    def describe(self) -> dict[str, Any]:
        listing = self._listing
        counts = [block.rows for block in listing.blocks]
        sizes = [file.size for file in listing.files.values()]
        return {
            "format": self.format,
            "files": len(listing.files),
            "bytes": None if None in sizes else sum(filter(None, sizes)),
            self.unit: listing.n_units,
            "blocks": len(listing.blocks),
            "rows": None if None in counts else sum(filter(None, counts)),
            "columns": {field.name: str(field.type) for field in listing.full_schema},
        }

    @abstractmethod
    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on; see `Source.read`."""

    @abstractmethod
    def _look(self, file: FileVersion) -> Contents:
        """What is in a file."""

    def lenient(self) -> TableSource:
        """The same source, but a damaged file raises only when it is read: it becomes one unreadable block."""
        source = copy.copy(self)
        source._is_lenient, source._known = True, None
        return source

    @property
    def _listing(self) -> Listing:
        if self._known is None:
            self._known = self._list()
        return self._known

    def _list(self) -> Listing:
        keep_freed_memory()  # here, too: this process gets the rows that workers read
        files = list_files(self._paths, self._options)
        given = [self._paths] if isinstance(self._paths, (str, os.PathLike)) else self._paths
        self._path_columns = find_path_columns(given, files, self._options.hive_partitioning)
        with ThreadPoolExecutor(min(_THREADS, len(files))) as threads:  # it mostly waits
            contents = list(threads.map(self._look_leniently if self._is_lenient else self._look, files))
        schemas = {file: content.schema for file, content in zip(files, contents, strict=True) if content is not None}
        if not schemas:
            self._look(files[0])  # raises what is wrong with it
        schema, full_schema = self._schemas(list(schemas), list(schemas.values()))
        blocks = tuple(
            Block(file.path, part.start, part.stop, part.n_rows, part.n_bytes)
            for file, content in zip(files, contents, strict=True)
            for part in ([_DAMAGED] if content is None else join_small(content.parts, self._block_bytes))
        )
        n_units = sum(content.n_units for content in contents if content is not None)
        return Listing({file.path: file for file in files}, schema, full_schema, n_units, blocks)

    def _schemas(self, files: Sequence[FileVersion], schemas: Sequence[pa.Schema]) -> tuple[pa.Schema, pa.Schema]:
        """What is read of files, and that with the columns of folders: those that the files have not, too."""
        own = {name for schema in schemas for name in schema.names}
        more = {
            name: pa.field(name, PATH_TYPES[kind]) for name, kind in self._path_columns.types.items() if name not in own
        }
        asked = self._columns
        of_files = None if asked is None else [name for name in asked if name not in more]
        if of_files == []:
            raise ValueError(f"`columns` must name a column of the files, got {list(asked or ())}, of their folders.")
        schema = check_columns(files, schemas, of_files)
        if asked is None:
            return schema, pa.schema([*schema, *more.values()])
        return schema, pa.schema([more[name] if name in more else schema.field(name) for name in asked])

    def _complete(self, batches: Iterable[pa.RecordBatch], block: Block) -> Iterable[pa.RecordBatch]:
        """The batches with the columns of folders."""
        listing = self._listing
        if listing.full_schema.equals(listing.schema):
            return batches
        values = self._path_columns.values(block.path)
        names = frozenset(listing.schema.names)

        def complete(batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays(
                [
                    batch.column(field.name)
                    if field.name in names
                    else pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
                    for field in listing.full_schema
                ],
                names=listing.full_schema.names,
            )

        return map(complete, batches)

    def _look_leniently(self, file: FileVersion) -> Contents | None:
        try:
            return self._look(file)
        except RecordError:
            return None

    def _check(self, block: Block) -> None:
        """See that a block is of a file that could be looked into.

        Raises:
            RecordError: it could not.
        """
        if block.stop == _DAMAGED.stop:
            self._look(self._listing.files[block.path])
            raise RecordError(
                f"{block.path} was damaged when it was listed, but is not any more. Create the stream again."
            )

    def _open(self, file: FileVersion) -> pa.NativeFile:
        """A file as Arrow reads it: a local one without Python in between.

        It is never mapped into memory: a file that is cut off while it is mapped ends the process.

        Raises:
            ChangedFileError: it is not the one that was listed.
        """
        if not is_local(file.path):
            return pa.PythonFile(open_range(file, 0, 0, self._options))
        check_unchanged(file)
        return pa.OSFile(file.path)

    @contextmanager
    def _reporting_damage(self, file: FileVersion) -> Iterator[None]:
        """Arrow's errors about content as ours; those about files have a number, and pass."""
        try:
            yield
        except (pa.ArrowException, ValueError, OSError) as error:
            if getattr(error, "errno", None) is not None or isinstance(error, HeadraceError):
                raise
            raise RecordError(f"{file.path} is damaged, or no {self.format.capitalize()} file: {error}") from error


def check_names(schema: pa.Schema) -> pa.Schema:
    """The schema, whose names have been decoded.

    Raises:
        ValueError: one cannot be.
    """
    _decode_names(schema)
    return schema


def _decode_names(fields: Iterable[pa.Field]) -> None:
    for field in fields:
        if field.name and pa.types.is_nested(field.type):
            _decode_names(field.type.field(i) for i in range(field.type.num_fields))


def check_columns(
    files: Sequence[FileVersion], schemas: Sequence[pa.Schema], columns: Sequence[str] | None
) -> pa.Schema:
    """The schema of the columns that are read, in the order of the first file, which must be in all files.

    Raises:
        ValueError: a column is missing, or of another type, or not the only one of its name, in some file.
    """
    first = schemas[0]
    fields = [{field.name: field.type for field in schema} for schema in schemas]  # looking for one by name takes long
    for file, schema in zip(files, schemas, strict=True):
        counts = Counter(schema.names)
        if several := sorted({name for name in columns or counts if counts[name] > 1}):
            raise ValueError(f"{file.path!r} has several columns called {several}. Pass `columns` without them.")
    if missing := [name for name in columns or () if name not in fields[0]]:
        raise ValueError(f"`columns` must be columns of {files[0].path!r}, {first.names}, got {missing}.")
    wanted = first if columns is None else pa.schema([first.field(name) for name in columns])
    wanted_names = set(wanted.names)
    for file, types in zip(files, fields, strict=True):
        for field in wanted:
            found = types.get(field.name)
            if found != field.type:
                cure = "that all files have" if found is None else "without it, or write it with one type"
                raise ValueError(
                    f"All files must have the same columns, but the column {field.name!r} is {field.type} in "
                    f"{files[0].path!r} and {found or 'missing'} in {file.path!r}. Pass `columns` {cure}."
                )
        if columns is None and (more := sorted(set(types) - wanted_names)):
            raise ValueError(
                f"All files must have the same columns, but {more} of {file.path!r} are not in {files[0].path!r}. "
                "Pass `columns` that all files have."
            )
    return wanted


def join_small(parts: Iterable[Part], block_bytes: int) -> list[Part]:
    """Join parts that follow each other, as long as they stay under `block_bytes` together; leaves out empty ones."""
    joined: list[Part] = []
    for part in parts:
        if part.n_rows == 0:
            continue
        last = joined[-1] if joined else None
        if last is not None and last.stop == part.start and last.n_bytes + part.n_bytes <= block_bytes:
            joined[-1] = _join(last, part)
        else:
            joined.append(part)
    return joined


def _join(first: Part, second: Part) -> Part:
    is_known = first.n_rows is not None and second.n_rows is not None
    n_rows = (first.n_rows or 0) + (second.n_rows or 0) if is_known else None
    return Part(first.start, second.stop, n_rows, first.n_bytes + second.n_bytes)


def chunk_rows(n_rows: int, n_bytes: int) -> int:
    """How many rows make a chunk, if `n_rows` have `n_bytes`; where there are several, they are about as long."""
    most = max(1, min(_MOST_CHUNK_ROWS, CHUNK_BYTES * n_rows // max(n_bytes, 1)))
    n_chunks = -(-n_rows // most)
    return most if n_chunks <= 1 else -(-n_rows // n_chunks)


def table_chunks(batches: Iterable[pa.RecordBatch], first_row: int = 0) -> Iterator[ColumnChunk]:
    """The rows of batches from `first_row` on, in chunks of about `CHUNK_BYTES`.

    Decoded values may take more memory than the file says.
    """
    keep_freed_memory()
    for batch in batches:
        check_values(batch)
        n_rows = batch.num_rows
        if first_row < n_rows:
            n = chunk_rows(n_rows, batch.nbytes)
            yield from (table_chunk(batch.slice(start, n)) for start in range(first_row, n_rows, n))
        first_row = max(first_row - n_rows, 0)
