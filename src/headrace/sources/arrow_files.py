"""What files of tables have in common: opened for Arrow, and with the same columns in each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.base.optional import import_extra
from headrace.sources.arrow import TableChunk
from headrace.sources.files import check_unchanged, is_local, open_range
from headrace.sources.retry import Retries
from headrace.sources.source import FileVersion

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = import_extra("pyarrow", "arrow", "Reading tables")

T = TypeVar("T")

BLOCK_BYTES = 8 << 20
CHUNK_BYTES = 2 << 20
_MOST_CHUNK_ROWS = 1 << 14
_THREADS = 16


class Part(NamedTuple):
    """A part of a file, [start, stop) in rows or in record batches.

    Attributes:
        n_rows: how many rows it has, if that is known.
        n_bytes: how much memory they take, about.
    """

    start: int
    stop: int
    n_rows: int | None
    n_bytes: int


def open_for_arrow(
    file: FileVersion, storage_options: Mapping[str, Any] | None, retries: Retries | None, *, mapped: bool = False
) -> pa.NativeFile:
    """A file as Arrow reads it: a local one without Python in between, and mapped into memory if asked for.

    Raises:
        ChangedFileError: it is not the one that was listed.
    """
    if not is_local(file.path):
        return pa.PythonFile(open_range(file, 0, 0, storage_options, retries))
    check_unchanged(file)
    return pa.memory_map(file.path) if mapped else pa.OSFile(file.path)


def for_each_file(look: Callable[[FileVersion], T], files: Sequence[FileVersion]) -> list[T]:
    """What `look` says of each file, in order; in threads, since it mostly waits."""
    with ThreadPoolExecutor(min(_THREADS, len(files) or 1)) as threads:
        return list(threads.map(look, files))


def check_columns(
    files: Sequence[FileVersion], schemas: Sequence[pa.Schema], columns: Sequence[str] | None
) -> pa.Schema:
    """The schema of the columns that are read, in the order of the first file, which must be in all files.

    Raises:
        ValueError: a column is missing, or of another type, in some file.
    """
    first = schemas[0]
    if missing := [name for name in columns or () if name not in first.names]:
        raise ValueError(f"`columns` must be columns of {files[0].path!r}, {first.names}, got {missing}.")
    wanted = first if columns is None else pa.schema([first.field(name) for name in columns])
    for file, schema in zip(files, schemas, strict=True):
        for field in wanted:
            found = schema.field(field.name).type if field.name in schema.names else None
            if found != field.type:
                raise ValueError(
                    f"All files must have the same columns, but the column {field.name!r} is {field.type} in "
                    f"{files[0].path!r} and {found or 'missing'} in {file.path!r}. Pass `columns` that all files have."
                )
        if columns is None and (more := sorted(set(schema.names) - set(wanted.names))):
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
    """How many rows make a chunk, if `n_rows` have `n_bytes`."""
    return max(1, min(_MOST_CHUNK_ROWS, CHUNK_BYTES * n_rows // max(n_bytes, 1)))


def table_chunks(batch: pa.RecordBatch) -> Iterator[TableChunk]:
    """The rows of a batch in chunks of about `CHUNK_BYTES`: files may tell less than values take once decoded."""
    n_rows = batch.num_rows
    n = chunk_rows(n_rows, batch.nbytes)
    return (TableChunk(batch.slice(start, n)) for start in range(0, n_rows, n))
