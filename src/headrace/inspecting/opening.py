"""Finds out what a path, an address or a query stands for, and makes a stream of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.base.errors import InspectError
from headrace.streams.readers import read_arrow, read_csv, read_jsonl, read_parquet, read_sql, read_tar, read_text
from headrace.streams.stream import Stream

if TYPE_CHECKING:
    from headrace.sources.access import Access
    from headrace.sources.files import Paths

READERS: Mapping[str, Callable[..., Stream]] = {
    "text": read_text,
    "csv": read_csv,
    "tsv": partial(read_csv, separator="\t"),
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "tar": read_tar,
}
_TEXTS = ("text", "csv", "tsv", "jsonl")
_DATABASES = ("sqlite", "postgresql")


def open_data(
    data: Paths, format_name: str | None, query: str | None, options: Mapping[str, Any]
) -> tuple[str, Stream]:
    """The format of some data, and a stream of its rows.

    Raises:
        InspectError: the format is not known, or not told by the data, or there are several.
    """
    known = (*READERS, *_DATABASES)
    if format_name is not None and format_name not in known:
        raise InspectError(f"format must be one of {', '.join(known)}, got {format_name!r}.")
    found = format_name or _guess(data, options)
    if found in _DATABASES:
        return found, _open_query(data, query, options)
    if query is not None:
        shown = repr(os.fspath(data) if isinstance(data, os.PathLike) else data)
        raise InspectError(f"A query needs a database, but {shown} is {found}. Leave query= (--query) out.")
    stream = READERS[found](data, **options)
    if found in _TEXTS and "encoding" not in options:
        _check_mark(stream, options)
    return found, stream


def _check_mark(stream: Stream, options: Mapping[str, Any]) -> None:
    """See that the first file is in UTF-8, as readers assume, if it tells.

    Raises:
        InspectError: its byte order mark is that of another encoding.
    """
    from headrace.sources.guessing import encoding_by_mark, read_beginning

    for file in stream.recipe.source.versions()[:1]:
        encoding = encoding_by_mark(read_beginning(file, _access(options)))
        if encoding not in (None, "utf-8-sig"):
            raise InspectError(
                f"{file.path!r} begins with the byte order mark of {encoding}. "
                f'Pass encoding="{encoding}" (--encoding {encoding}).'
            )


def _guess(data: Paths, options: Mapping[str, Any]) -> str:
    from headrace.sources.files import list_files
    from headrace.sources.guessing import format_by_content, format_by_name

    if isinstance(data, str) and (named := format_by_name(data)) in _DATABASES:
        return named or ""
    access = _access(options)
    files = list_files(data, access)
    by_name = [format_by_name(file.path) for file in files]
    formats = Counter(name for name in by_name if name is not None)
    unnamed = next((file for file, name in zip(files, by_name, strict=True) if name is None), None)
    if unnamed is not None and (named := format_by_content(unnamed, access)) is not None:
        formats[named] += by_name.count(None)
    if len(formats) == 1:
        return next(iter(formats))
    if not formats:
        raise InspectError(
            f"The format of {files[0].path!r} is told neither by its name nor by its first bytes. Pass format= "
            f"(--format): one of {', '.join(READERS)}, sqlite. A JSON document must be written as JSON lines first."
        )
    found = ", ".join(f"{name} ({count})" for name, count in formats.most_common())
    raise InspectError(f"{data!r} has files of several formats: {found}. Pass a glob for some of them, or format=.")


def _access(options: Mapping[str, Any]) -> Access:
    from headrace.sources.access import make_access

    return make_access(options.get("storage_options"), options.get("retries"), options.get("cache"))


def _open_query(data: Paths, query: str | None, options: Mapping[str, Any]) -> Stream:
    from headrace.sources.sql import open_database
    from headrace.sources.sql_queries import quoted

    if not isinstance(data, (str, os.PathLike)):
        raise InspectError(f"A database is one path or address, got {data!r}.")
    dsn = os.fspath(data)
    database = open_database(dsn, options.get("driver"))
    # Asked in any case: what is no database would still answer a query that reads no table.
    tables = [name for (name,) in database.ask(database.tables_query).rows]
    if query is None:
        if len(tables) != 1:
            listed = ", ".join(map(repr, tables)) or "no tables"
            raise InspectError(
                f"{database.location} has {listed}. Pass the query that is meant: query='SELECT * FROM …' (--query)."
            )
        query = f"SELECT * FROM {quoted(tables[0])}"
    return read_sql(dsn, query, **options)
