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
    from headrace.sources.tar_decoders import Decoder

Rows: TypeAlias = Literal["dicts", "columns"]


def read_text(
    paths: Paths,
    *,
    words: bool = False,
    whole_files: bool = False,
    encoding: str = "utf-8",
    errors: str = "strict",
    compression: str | None = "auto",
    block_bytes: int | None = None,
    max_record_bytes: int = 64 << 20,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
) -> Stream:
    """A stream of the lines of text files, without their newlines; or of their words, or of whole files.

    Paths are one or many: files, directories, globs, or addresses such as `s3://bucket/key` (extra `remote`). A
    compressed file is one block, and so is one in an encoding that cannot be cut, like UTF-7.

    Args:
        words: whether rows are words, which is twice as fast as to split lines by `flat_map(str.split)`.
        whole_files: whether rows are files.
        encoding: any of text that Python knows.
        errors: what becomes of bytes that are no text: "strict" makes their record a bad one; or as in `bytes.decode`.
        compression: "gzip", "zstd", "bz2", "xz" or None; "auto" goes by the suffix, or without one by the first bytes.
        block_bytes: how long a block is, about; if None, 2 MiB of a local file, and 8 MiB of one in a store.
        max_record_bytes: a record that takes more is a bad one.
        storage_options: for fsspec: credentials, endpoints, headers.
        retries: how often to try again what a store fails to do.
        cache: where to keep what was read from stores: a `Cache`, or its folder; None goes by the environment variable
            HEADRACE_CACHE, and False means nowhere.

    Raises:
        ValueError: `words` and `whole_files` exclude each other, or a number is too small.
        LookupError: there is no such encoding, or no such way to treat errors.
        TypeError: `paths` are no paths.
    """
    from headrace.sources.access import make_access
    from headrace.sources.file_source import FileOptions
    from headrace.sources.text import TextSource, WholeTextSource, WordSource

    if words and whole_files:
        raise ValueError("`words` and `whole_files` exclude each other: pass one of them.")
    source = WordSource if words else WholeTextSource if whole_files else TextSource
    access = make_access(storage_options, retries, cache)
    options = FileOptions(encoding, errors, compression, block_bytes, max_record_bytes, access)
    return Stream(Recipe(source(_checked_paths(paths), options)))


def read_jsonl(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    compression: str | None = "auto",
    block_bytes: int | None = None,
    max_record_bytes: int = 64 << 20,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
) -> Stream:
    """A stream of JSON values, one per line. Paths and arguments are those of `read_text`."""
    from headrace.sources.access import make_access
    from headrace.sources.file_source import FileOptions
    from headrace.sources.jsonl import JsonLinesSource

    access = make_access(storage_options, retries, cache)
    options = FileOptions(encoding, errors, compression, block_bytes, max_record_bytes, access)
    return Stream(Recipe(JsonLinesSource(_checked_paths(paths), options)))


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
    encoding: str = "utf-8",
    errors: str = "strict",
    compression: str | None = "auto",
    block_bytes: int | None = None,
    max_record_bytes: int = 64 << 20,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
) -> Stream:
    """A stream of the rows of CSV files, as dicts, or in batches of columns.

    Args:
        header: whether the first line names the columns.
        names: of the columns, if no line does.
        types: "int", "float", "bool" or "str" by column; what is not given is found in the first 10,000 records, or in
            the first megabyte, if that is less. Texts that look like numbers become numbers: name columns such as
            postal codes, which lose their leading zeros, as "str". Whole numbers of more than 64 bits stay text.
        quote: None if quotes mean nothing.
        nulls: the texts that stand for null; the empty text, if not given, where a column is not of text.
        newlines_in_values: False spares reading large files once to find quoted newlines.
        rows: "columns" makes a batch of slices of columns, which is many times faster.
        encoding, errors, compression, block_bytes, max_record_bytes: see `read_text`.
        storage_options, retries, cache: see `read_text`.
    """
    from headrace.sources.access import make_access
    from headrace.sources.csv_format import CsvFormat
    from headrace.sources.csv_rows import CsvSource
    from headrace.sources.file_source import FileOptions

    table = CsvFormat(separator, quote, header, names, types, nulls, newlines_in_values)
    access = make_access(storage_options, retries, cache)
    options = FileOptions(encoding, errors, compression, block_bytes, max_record_bytes, access)
    return _stream(CsvSource(_checked_paths(paths), table, options), rows)


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
    decode: bool | Mapping[str, Decoder | None] = True,
    split: bool | None = None,
    block_bytes: int = 8 << 20,
    max_record_bytes: int = 1 << 30,
    storage_options: Mapping[str, Any] | None = None,
    retries: Retries | None = None,
    cache: CacheLike = None,
) -> Stream:
    """A stream of the samples of tar archives, named as WebDataset names them: a dict per key, by extension.

    Args:
        decode: True decodes fields by their extension, False leaves them as bytes. A dict has more decoders, or other
            ones, by field or extension; None leaves it as bytes: `{"pkl": pickle.loads, "jpg": None}`.
        split: whether to cut archives into blocks; None cuts those that are local and not compressed.
        block_bytes: how long a block is, about.
        max_record_bytes: a sample that takes more is a bad one.
        storage_options, retries, cache: see `read_text`.
    """
    from headrace.sources.access import make_access
    from headrace.sources.tar import TarSource

    access = make_access(storage_options, retries, cache)
    source = TarSource(
        _checked_paths(paths),
        decode=decode,
        split=split,
        block_bytes=block_bytes,
        max_record_bytes=max_record_bytes,
        access=access,
    )
    return Stream(Recipe(source))


def read_sql(
    dsn: str | os.PathLike[str],
    query: str,
    key: str | Sequence[str] | None = None,
    *,
    rows: Rows = "dicts",
    order_by: str | Sequence[str] | None = None,
    parameters: Sequence[Any] | Mapping[str, Any] = (),
    block_rows: int = 32_768,
    driver: str | None = None,
    retries: Retries | None = None,
) -> Stream:
    """A stream of the rows of a query: of SQLite, or of PostgreSQL (extra `sql`).

    Args:
        dsn: a path, `sqlite:///path`, or `postgresql://...`.
        key: a column, by whose values the query is read in parts, in their order, whatever ORDER BY it has; without it,
            it is read as one.
        rows: "columns" makes a batch of slices of columns.
        order_by: columns, in whose order the query is read in parts; each costs the database all parts before it.
        parameters: values for the placeholders in the query: `?` in SQLite, `$1`, `$2`, … in PostgreSQL; a mapping for
            `:name` in SQLite.
        block_rows: how many rows a part has.
        driver: for PostgreSQL: "adbc" or "psycopg"; None for the first of them that is installed.
        retries: how often to try again what a database fails to do.
    """
    from headrace.sources.sql import SqlSource

    if not isinstance(dsn, (str, os.PathLike)):
        raise TypeError(f"dsn must be a path, 'sqlite:///path' or 'postgresql://...', got {dsn!r}.")
    source = SqlSource(
        os.fspath(dsn),
        query,
        key,
        order_by=order_by,
        parameters=parameters,
        block_rows=block_rows,
        driver=driver,
        retries=retries,
    )
    return _stream(source, rows)


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
