"""The functions that make streams: one for each kind of source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace.sources.source import Source
from headrace.streams.stream import Recipe, Stream

# A source is imported when it is asked for: what they need is slow to import, and few need them all.
if TYPE_CHECKING:
    from headrace.sources.files import Paths

Rows: TypeAlias = Literal["dicts", "columns"]


def read_text(paths: Paths, *, whole_files: bool = False, **options: Any) -> Stream:
    """A stream of the lines of text files, without their newlines; or of whole files.

    Paths are one or many: files, directories, globs, or addresses such as `s3://bucket/key` (extra `remote`). Gzip,
    zstd, bz2 and xz are found by the suffix.

    Args:
        options: encoding, errors, compression, block_bytes, max_record_bytes, storage_options; see `FileOptions`.
    """
    from headrace.sources.file_source import FileOptions
    from headrace.sources.text import TextSource, WholeTextSource

    source = WholeTextSource if whole_files else TextSource
    return Stream(Recipe(source(paths, FileOptions(**options))))


def read_jsonl(paths: Paths, **options: Any) -> Stream:
    """A stream of JSON values, one per line. Paths and options are those of `read_text`."""
    from headrace.sources.file_source import FileOptions
    from headrace.sources.jsonl import JsonLinesSource

    return Stream(Recipe(JsonLinesSource(paths, FileOptions(**options))))


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
    **options: Any,
) -> Stream:
    """A stream of the rows of CSV files, as dicts, or in batches of columns.

    Args:
        header: whether the first line names the columns.
        names: of the columns, if no line does.
        types: "int", "float", "bool" or "str" by column; what is not given is found in the first block.
        quote: None if quotes mean nothing.
        nulls: the texts that stand for null; the empty text, if not given, where a column is not of text.
        newlines_in_values: False spares reading large files once to find quoted newlines.
        rows: "columns" makes a batch of slices of columns, which is many times faster.
        options: see `read_text`.
    """
    from headrace.sources.csv_format import CsvFormat
    from headrace.sources.csv_rows import CsvSource
    from headrace.sources.file_source import FileOptions

    table = CsvFormat(separator, quote, header, names, types, nulls, newlines_in_values)
    return _stream(CsvSource(paths, table, FileOptions(**options)), rows)


def read_parquet(paths: Paths, *, columns: Sequence[str] | None = None, rows: Rows = "dicts", **options: Any) -> Stream:
    """A stream of the rows of Parquet files (extra `arrow`).

    Args:
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        options: filters, block_bytes, storage_options, retries.
    """
    from headrace.sources.arrow_parquet import ParquetSource

    return _stream(ParquetSource(paths, columns=columns, **options), rows)


def read_arrow(paths: Paths, *, columns: Sequence[str] | None = None, rows: Rows = "dicts", **options: Any) -> Stream:
    """A stream of the rows of Arrow and Feather files (extra `arrow`).

    Args:
        columns: which to read; all if None.
        rows: "columns" makes a batch of slices of columns.
        options: block_bytes, storage_options, retries.
    """
    from headrace.sources.arrow_ipc import ArrowSource

    return _stream(ArrowSource(paths, columns=columns, **options), rows)


def read_tar(paths: Paths, **options: Any) -> Stream:
    """A stream of the samples of tar archives, named as WebDataset names them: a dict per key, by extension.

    Args:
        options: decode, split, block_bytes, max_record_bytes, storage_options, retries.
    """
    from headrace.sources.tar import TarSource

    return Stream(Recipe(TarSource(paths, **options)))


def read_sql(
    dsn: str, query: str, key: str | Sequence[str] | None = None, *, rows: Rows = "dicts", **options: Any
) -> Stream:
    """A stream of the rows of a query: of SQLite, or of PostgreSQL (extra `sql`).

    Args:
        dsn: a path, `sqlite:///path`, or `postgresql://...`.
        key: a column, by whose values the query is read in parts; without it, it is read as one.
        rows: "columns" makes a batch of slices of columns.
        options: order_by, parameters, block_rows, driver, retries.
    """
    from headrace.sources.sql import SqlSource

    return _stream(SqlSource(dsn, query, key, **options), rows)


def _stream(source: Source, rows: str) -> Stream:
    if rows not in ("dicts", "columns"):
        raise ValueError(f"rows must be 'dicts' or 'columns', got {rows!r}.")
    return Stream(Recipe(source, as_columns=rows == "columns"))
