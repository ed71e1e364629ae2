"""The functions that make streams: one for each kind of source."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace.sources.source import Source
from headrace.streams.stream import Recipe, Stream

# A source is imported when it is asked for: what they need is slow to import, and few need them all.
if TYPE_CHECKING:
    from headrace.sources.cache import CacheLike
    from headrace.sources.files import Paths
    from headrace.sources.retry import Retries

Rows: TypeAlias = Literal["dicts", "columns"]


def read_text(
    paths: Paths,
    *,
    words: bool = False,
    whole_files: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
    **options: Any,
) -> Stream:
    """A stream of the lines of text files, without their newlines; or of their words, or of whole files.

    Paths are one or many: files, directories, globs, or addresses such as `s3://bucket/key` (extra `remote`). Gzip,
    zstd, bz2 and xz are found by the suffix.

    Args:
        words: whether rows are words, which is twice as fast as to split lines by `flat_map(str.split)`.
        whole_files: whether rows are files.
        storage_options: for fsspec: credentials, endpoints, headers.
        retries: how often to try again what a store fails to do.
        cache: where to keep what was read from stores: a `Cache`, or its folder; None goes by the environment variable
            HEADRACE_CACHE, and False means nowhere.
        options: encoding, errors, compression, block_bytes, max_record_bytes; see `FileOptions`.

    Raises:
        ValueError: `words` and `whole_files` exclude each other.
        TypeError: `paths` are no paths.
    """
    from headrace.sources.access import make_access
    from headrace.sources.file_source import FileOptions
    from headrace.sources.text import TextSource, WholeTextSource, WordSource

    if words and whole_files:
        raise ValueError("`words` and `whole_files` exclude each other: pass one of them.")
    source = WordSource if words else WholeTextSource if whole_files else TextSource
    access = make_access(storage_options, retries, cache)
    return Stream(Recipe(source(_checked_paths(paths), FileOptions(access=access, **options))))


def read_jsonl(
    paths: Paths,
    *,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
    **options: Any,
) -> Stream:
    """A stream of JSON values, one per line. Paths and options are those of `read_text`."""
    from headrace.sources.access import make_access
    from headrace.sources.file_source import FileOptions
    from headrace.sources.jsonl import JsonLinesSource

    access = make_access(storage_options, retries, cache)
    return Stream(Recipe(JsonLinesSource(_checked_paths(paths), FileOptions(access=access, **options))))


def read_csv(
    paths: Paths,
    *,
    separator: str = ",",
    header: bool = True,
    names: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
    quote: str | None = '"',
    nulls: Collection[str] | None = None,
    newlines_in_values: bool = True,
    rows: Rows = "dicts",
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
    **options: Any,
) -> Stream:
    """A stream of the rows of CSV files, as dicts, or in batches of columns.

    Args:
        header: whether the first line names the columns.
        names: of the columns, if no line does.
        types: "int", "float", "bool" or "str" by column; what is not given is found in the first block. Texts that look
            like numbers become numbers: name columns such as postal codes, which lose their leading zeros, as "str".
        quote: None if quotes mean nothing.
        nulls: the texts that stand for null; the empty text, if not given, where a column is not of text.
        newlines_in_values: False spares reading large files once to find quoted newlines.
        rows: "columns" makes a batch of slices of columns, which is many times faster.
        storage_options, retries, cache, options: see `read_text`.
    """
    from headrace.sources.access import make_access
    from headrace.sources.csv_format import CsvFormat
    from headrace.sources.csv_rows import CsvSource
    from headrace.sources.file_source import FileOptions

    table = CsvFormat(separator, quote, header, names, types, nulls, newlines_in_values)
    access = make_access(storage_options, retries, cache)
    return _stream(CsvSource(_checked_paths(paths), table, FileOptions(access=access, **options)), rows)


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
    filters: Any = None,
    block_bytes: int | None = None,
) -> Stream:
    """A stream of the rows of Parquet files (extra `arrow`).

    Args:
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        storage_options, retries, cache: see `read_text`.
        filters: an expression of `pyarrow.dataset`, or pyarrow's lists of tuples: `[("label", "in", [1, 2])]`. Only
            rows that fit come, and row groups that cannot have any are not read.
        block_bytes: how much of a table is a block, about, uncompressed: small row groups are joined, large ones cut.
            8 MiB, if None.
    """
    from headrace.sources.access import make_access
    from headrace.sources.arrow_parquet import ParquetSource

    access = make_access(storage_options, retries, cache)
    source = ParquetSource(
        _checked_paths(paths), columns=columns, access=access, filters=filters, block_bytes=block_bytes
    )
    return _stream(source, rows)


def read_arrow(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    rows: Rows = "dicts",
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
    block_bytes: int | None = None,
) -> Stream:
    """A stream of the rows of Arrow and Feather files (extra `arrow`).

    Args:
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        storage_options, retries, cache: see `read_text`.
        block_bytes: how much of a table is a block, about: small record batches are joined. 8 MiB, if None.
    """
    from headrace.sources.access import make_access
    from headrace.sources.arrow_ipc import ArrowSource

    access = make_access(storage_options, retries, cache)
    return _stream(ArrowSource(_checked_paths(paths), columns=columns, access=access, block_bytes=block_bytes), rows)


def read_tar(
    paths: Paths,
    *,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
    **options: Any,
) -> Stream:
    """A stream of the samples of tar archives, named as WebDataset names them: a dict per key, by extension.

    Args:
        storage_options, retries, cache: see `read_text`.
        options: decode, split, block_bytes, max_record_bytes.
    """
    from headrace.sources.access import make_access
    from headrace.sources.tar import TarSource

    access = make_access(storage_options, retries, cache)
    return Stream(Recipe(TarSource(_checked_paths(paths), access=access, **options)))


def read_sql(
    dsn: str | os.PathLike[str],
    query: str,
    key: str | Sequence[str] | None = None,
    *,
    rows: Rows = "dicts",
    **options: Any,
) -> Stream:
    """A stream of the rows of a query: of SQLite, or of PostgreSQL (extra `sql`).

    Args:
        dsn: a path, `sqlite:///path`, or `postgresql://...`.
        key: a column, by whose values the query is read in parts; without it, it is read as one.
        rows: "columns" makes a batch of slices of columns.
        options: order_by, parameters, block_rows, driver, retries.
    """
    from headrace.sources.sql import SqlSource

    if not isinstance(dsn, (str, os.PathLike)):
        raise TypeError(f"dsn must be a path, 'sqlite:///path' or 'postgresql://...', got {dsn!r}.")
    return _stream(SqlSource(os.fspath(dsn), query, key, **options), rows)


def _checked_paths(paths: Any) -> list[str | os.PathLike[str]]:
    """The paths as a list, whatever they came in.

    Raises:
        TypeError: one of them is something else.
    """
    is_one = isinstance(paths, (str, bytes, os.PathLike)) or not isinstance(paths, Iterable)
    given = [paths] if is_one else list(paths)
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"paths must be a path or address, or a list of them, got {path!r:.80}.")
    return given


def _stream(source: Source, rows: str) -> Stream:
    if rows not in ("dicts", "columns"):
        raise ValueError(f"rows must be 'dicts' or 'columns', got {rows!r}.")
    return Stream(Recipe(source, as_columns=rows == "columns"))
