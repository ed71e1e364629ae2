"""Looks into data before anybody loads it: format, columns, files, blocks, rows, a few samples."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from headrace.base.errors import HeadraceError, InspectError, RecordError
from headrace.base.html import code, paragraph, table, title
from headrace.sources.source import BadRecord, Source
from headrace.streams.readers import (
    read_arrow,
    read_csv,
    read_hdf5,
    read_jsonl,
    read_litdata,
    read_mds,
    read_npy,
    read_parquet,
    read_sql,
    read_tar,
    read_text,
    read_tfrecord,
    read_tokens,
)
from headrace.streams.recipe import PlannedSource
from headrace.streams.stream import Stream

if TYPE_CHECKING:
    from headrace.sources.files import Paths

_MOST_CHARACTERS = 200  # of a text
_MOST_ITEMS = 20  # of a list or dict
_MOST_FILES_SHOWN = 10


@dataclass(frozen=True)
class Inspection:
    """What is known of some data. `print` it, or take it apart.

    Attributes:
        format: "text", "csv", "tsv", "jsonl", "parquet", "arrow", "tar", "tokens", "sqlite" or "postgresql".
        columns: the type of each column, or of each field that was seen.
        files: the path and the size of each file; None where the size is not known.
        n_bytes: of all files together, as they are stored; None if not known.
        n_blocks: the parts that can be read alone; None if they are others in each epoch.
        n_rows: how many rows there are; None if unknown.
        rows_are: whether that number is exact, was estimated from the part that was read, or is the least possible.
        n_bad: records among those read that cannot be read as what they should be.
        first_bad: the first of them, and what is wrong with it.
        details: what else the format has to say: encoding, compression, row groups, the query.
        samples: the first rows, as plain values; long ones are shortened.
    """

    format: str
    columns: Mapping[str, str]
    files: Sequence[tuple[str, int | None]]
    n_bytes: int | None
    n_blocks: int | None
    n_rows: int | None
    rows_are: Literal["exact", "about", "at least"]
    n_bad: int
    first_bad: str | None
    details: Mapping[str, Any]
    samples: Sequence[Any]

    @property
    def is_readable(self) -> bool:
        """Whether any record can be read; where there are none, nothing is wrong."""
        return not self.n_bad or bool(self.n_rows)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, that `json.dumps` takes."""
        return {**asdict(self), "files": [{"path": path, "bytes": size} for path, size in self.files]}

    def __str__(self) -> str:
        parts = [self._headline(), *self._facts(), *self._columns(), *self._files()]
        if self.samples:
            parts += ["", "samples:", *(f"  {sample!r}" for sample in self.samples)]
        return "\n".join(map(printable, parts))

    def _repr_html_(self) -> str:
        parts = [title(printable(self._headline())), *(paragraph(printable(fact)) for fact in self._facts())]
        if self.columns:
            parts.append(table([("column", "type"), *(tuple(map(printable, pair)) for pair in self.columns.items())]))
        if self.files:
            files = [(printable(path), show_size(size)) for path, size in self.files[:_MOST_FILES_SHOWN]]
            more = len(self.files) - _MOST_FILES_SHOWN
            parts.append(table([("file", "size"), *files, *([(f"… and {more:,} more", "")] if more > 0 else [])]))
        return "".join(parts + [code(printable(repr(sample))) for sample in self.samples])

    def _headline(self) -> str:
        facts = [show_count(len(self.files), "file"), show_size(self.n_bytes)] if self.files else []
        if self.n_blocks is not None:
            facts.append(show_count(self.n_blocks, "block"))
        return f"{self.format}: {', '.join([*facts, self._rows()])}"

    def _rows(self) -> str:
        if self.n_rows is None:
            return "an unknown number of rows"
        rows = show_count(self.n_rows, "row")
        return rows if self.rows_are == "exact" else f"{self.rows_are} {rows}"

    def _facts(self) -> list[str]:
        facts = [f"{name.replace('_', ' ')}: {_show(value)}" for name, value in self.details.items()]
        if self.n_bad:
            how_many = "of which the first is" if self.is_readable else "which are all; the first is"
            facts.append(f"bad records: {self.n_bad:,}, {how_many} {self.first_bad}")
        return facts

    def _columns(self) -> list[str]:
        names = list(map(printable, self.columns))
        width = max(map(len, names), default=0)
        kinds = zip(names, self.columns.values(), strict=True)
        return ["", "columns:", *(f"  {name:{width}}  {kind}" for name, kind in kinds)]

    def _files(self) -> list[str]:
        if not self.files:
            return []
        shown = [f"  {path}  {show_size(size)}" for path, size in self.files[:_MOST_FILES_SHOWN]]
        more = len(self.files) - len(shown)
        return ["", "files:", *shown, *([f"  … and {more:,} more"] if more else [])]


def show_size(n_bytes: int | None) -> str:
    """A size for people: "12.3 MB"."""
    if n_bytes is None:
        return "unknown size"
    size, units = float(n_bytes), iter(("bytes", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while size >= 1000 and unit != "PB":
        size, unit = size / 1000, next(units)
    return f"{n_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def printable(text: str) -> str:
    r"""The text on one line, with whatever a terminal would obey instead of showing it as an escape sequence.

    Examples:
        >>> print(printable("a\nb"))
        a\nb
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def show_count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def type_name(value: Any) -> str:
    """The type of a value of a row, for people."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of {value.ndim} dimension{'' if value.ndim == 1 else 's'}"
    return "null" if value is None else type(value).__name__


def as_plain(value: Any) -> Any:
    """A value as JSON knows it; what is long is shortened, and says so."""
    match value:
        case None | bool() | int() | float():
            return value
        case str() if len(value) <= _MOST_CHARACTERS:
            return value
        case str():
            return f"{value[:_MOST_CHARACTERS]}… ({len(value):,} characters)"
        case bytes() | bytearray() | memoryview():
            return f"<{len(value):,} bytes: {bytes(value[:8]).hex(' ')}…>"
        case np.ndarray() if value.ndim == 1 and value.size <= _MOST_ITEMS:
            return value.tolist()
        case np.ndarray():
            return f"<{value.dtype} array of shape {value.shape}>"
        case np.generic():
            return value.item() if isinstance(value.item(), (bool, int, float, str)) else str(value)
        case Mapping():
            kept = {str(key): as_plain(item) for key, item in list(value.items())[:_MOST_ITEMS]}
            return kept if len(kept) == len(value) else {**kept, "…": f"{len(value) - len(kept):,} more"}
        case list() | tuple():
            kept_items = [as_plain(item) for item in value[:_MOST_ITEMS]]
            more = len(value) - len(kept_items)
            return [*kept_items, f"… {more:,} more"] if more else kept_items
        case _:
            return str(value)


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return repr(value) if isinstance(value, str) and not value.strip() else str(value)


READERS: Mapping[str, Callable[..., Stream]] = {
    "text": read_text,
    "csv": read_csv,
    "tsv": partial(read_csv, separator="\t"),
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "tar": read_tar,
    "tokens": partial(read_tokens, length=1024),
    "tfrecord": read_tfrecord,
    "mds": read_mds,
    "litdata": read_litdata,
    "hdf5": read_hdf5,
    "npy": read_npy,
}
_TEXTS = ("text", "csv", "tsv", "jsonl")
_DATABASES = ("sqlite", "postgresql")


def open_data(
    data: Paths, format_name: str | None, query: str | None, options: Mapping[str, Any]
) -> tuple[str, Stream]:
    """The format of some data, and a stream of its rows.

    Raises:
        InspectError: the format is unknown, cannot be guessed, or differs between files.
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
    if found in _TEXTS and not {"encoding", "files"} & set(options):
        _check_mark(stream, options)
    return found, stream


def _check_mark(stream: Stream, options: Mapping[str, Any]) -> None:
    """Check that the first file has no byte order mark of another encoding than UTF-8.

    Raises:
        InspectError: its byte order mark is that of another encoding.
    """
    from headrace.sources.guessing import encoding_by_mark, read_beginning
    from headrace.sources.options import options_among

    for file in stream.recipe.source.versions()[:1]:
        encoding = encoding_by_mark(read_beginning(file, options_among(options)))
        if encoding not in (None, "utf-8-sig"):
            raise InspectError(
                f"{file.path!r} begins with the byte order mark of {encoding}. "
                f'Pass encoding="{encoding}" (--encoding {encoding}).'
            )


def _guess(data: Paths, options: Mapping[str, Any]) -> str:
    from headrace.sources.files import list_files
    from headrace.sources.guessing import format_by_content, format_by_name
    from headrace.sources.options import options_among

    if isinstance(data, str) and (named := format_by_name(data)) in _DATABASES:
        return named or ""
    files_options = options_among(options)
    files = list_files(data, files_options)
    by_name = [format_by_name(file.path) for file in files]
    formats = Counter(name for name in by_name if name is not None)
    unnamed = next((file for file, name in zip(files, by_name, strict=True) if name is None), None)
    if unnamed is not None and (named := format_by_content(unnamed, files_options)) is not None:
        formats[named] += by_name.count(None)
    if len(formats) == 1:
        return next(iter(formats))
    if not formats:
        raise InspectError(
            f"The format of {files[0].path!r} cannot be guessed, neither from its name nor from its first bytes. "
            f"Pass format= (--format): one of {', '.join(READERS)}, sqlite. "
            "A JSON document must be written as JSON lines first."
        )
    found = ", ".join(f"{name} ({count})" for name, count in formats.most_common())
    raise InspectError(f"{data!r} has files of several formats: {found}. Pass a glob for some of them, or format=.")


def _open_query(data: Paths, query: str | None, options: Mapping[str, Any]) -> Stream:
    from headrace.sources.sql import open_database, quoted

    if not isinstance(data, (str, os.PathLike)):
        raise InspectError(f"A database is one path or address, got {data!r}.")
    dsn = os.fspath(data)
    database = open_database(dsn, options.get("driver"))
    # Always asked: what is not a database would still answer a query that reads no table.
    tables = [name for (name,) in database.ask(database.tables_query).rows]
    if query is None:
        if len(tables) != 1:
            listed = ", ".join(map(repr, tables)) or "no tables"
            raise InspectError(
                f"{database.location} has {listed}. Pass the query that is meant: query='SELECT * FROM …' (--query)."
            )
        query = f"SELECT * FROM {quoted(tables[0])}"
    return read_sql(dsn, query, **options)


_MOST_ROWS = 1_000_000
_LOOKED_AT_ROWS = 1000
_TOLD_ELSEWHERE = ("format", "files", "bytes", "blocks", "rows", "columns")


def inspect(
    data: Paths | Stream,
    *,
    format: str | None = None,  # noqa: A002 (what it is called on the command line, too)
    query: str | None = None,
    samples: int = 3,
    most_rows: int = _MOST_ROWS,
    **options: Any,
) -> Inspection:
    r"""Look into data: its format, columns, files, blocks, number of rows, and a few samples.

    Args:
        data: one or many paths, globs, folders or addresses; a database; or a stream, whose steps make the samples.
        format: "text", "csv", "tsv", "jsonl", "parquet", "arrow", "tar", "tokens" (of which raw `.bin` and `.npy` files
            are not recognised by themselves), "sqlite" or "postgresql". If None, it is inferred from the names of the
            files, or else from how they begin.
        query: of a database; may be left out if that has one table.
        samples: how many rows to show.
        most_rows: how many rows to count at most, where their number is not known.
        options: those of the function that reads this format: `separator=";"`, `storage_options={...}`.

    Raises:
        InspectError: the format is unknown, or the data cannot be read; says what to do.
        MissingExtraError: something that this format needs is not installed.

    Examples:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "numbers.txt")
        >>> _ = path.write_text("one\ntwo\nthree\n")
        >>> str(inspect(path)).splitlines()[0]
        'text: 1 file, 14 bytes, 1 block, 3 rows'
    """
    if samples < 0 or most_rows < 0:
        raise InspectError(f"samples and most_rows must be at least 0, got {samples} and {most_rows}.")
    try:
        name, stream = (None, data) if isinstance(data, Stream) else open_data(data, format, query, options)
        return _look(stream, name, samples, most_rows)
    except (InspectError, ImportError):
        raise
    except RecordError as error:
        raise InspectError(f"{error} Is it really that format? If not, pass another format= (--format).") from error
    except Exception as error:  # (whatever a store, a driver or a parser raises, it is about this data)
        is_ours = isinstance(error, (HeadraceError, OSError, ValueError, TypeError))
        told = f"{error}" if is_ours else f"{type(error).__name__}: {error}".strip()
        raise InspectError(f"{_shown(data)} cannot be inspected: {told}") from error


def _look(stream: Stream, name: str | None, samples: int, most_rows: int) -> Inspection:
    recipe, source = stream.recipe, stream.recipe.source
    described = source.describe()
    is_planned = isinstance(source, PlannedSource)  # its blocks are not known before an epoch begins
    first = _First([], []) if is_planned else _first_rows(source, max(samples, _LOOKED_AT_ROWS))
    is_as_read = not (is_planned or recipe.steps or recipe.limits)
    rows = first.rows[:samples] if is_as_read else list(islice(stream, samples))
    counted = _Counted(None, "exact") if is_planned else _count(source, most_rows)
    bad = counted.bad or first.bad
    details = {key: value for key, value in described.items() if key not in _TOLD_ELSEWHERE and value not in (None, [])}
    if recipe.steps:
        details["steps"] = [type(step).__name__ for step in recipe.steps]
    return Inspection(
        format=name or described["format"],
        columns=described.get("columns") or _columns_of(first.rows or rows),
        files=[(file.path, file.size) for file in source.versions() if "query" not in described],
        n_bytes=described.get("bytes"),
        n_blocks=None if is_planned else len(source.blocks()),
        n_rows=counted.n_rows,
        rows_are=counted.rows_are,
        n_bad=len(bad),
        first_bad=str(bad[0]) if bad else None,
        details=details,
        samples=[as_plain(row) for row in rows],
    )


class _First(NamedTuple):
    rows: list[Any]
    bad: list[BadRecord]


def _first_rows(source: Source, n: int) -> _First:
    """The first rows; bad records among them are left out. Reads no more than it must, however large a block is."""
    bad: list[BadRecord] = []
    return _First(list(islice(_rows(source, bad), n)), bad)


def _rows(source: Source, bad: list[BadRecord]) -> Iterator[Any]:
    for block in source.blocks():
        for chunk in source.read(block, 0, bad.append):
            yield from chunk.rows()


class _Counted(NamedTuple):
    n_rows: int | None
    rows_are: Literal["exact", "about", "at least"]
    bad: Sequence[BadRecord] = ()


def _count(source: Source, most_rows: int) -> _Counted:
    """The number of rows: as it is known, else counted, else estimated from the blocks that were counted."""
    blocks = source.blocks()
    known = [block.rows for block in blocks]
    if None not in known:
        return _Counted(sum(filter(None, known)), "exact")
    bad: list[BadRecord] = []
    n_rows = n_bytes = 0
    for block in blocks:
        before = n_rows
        for chunk in source.read(block, 0, bad.append):
            n_rows += len(chunk)
            if n_rows > most_rows:
                total = sum(each.n_bytes for each in blocks)
                if n_bytes and total:
                    return _Counted(before * total // n_bytes, "about", bad)
                return _Counted(n_rows, "at least", bad)
        n_bytes += block.n_bytes
    return _Counted(n_rows, "exact", bad)


def _columns_of(rows: Sequence[Any]) -> dict[str, str]:
    """The types that were seen in each field; rows that are not dicts are one column."""
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        fields = row if isinstance(row, Mapping) else {"text" if isinstance(row, str) else "value": row}
        for name, value in fields.items():
            seen.setdefault(str(name), {})[type_name(value)] = None
    return {name: " or ".join(types) for name, types in seen.items()}


def _shown(data: Any) -> str:
    """What was given, for an error; never with a password."""
    if isinstance(data, str) and "://" in data:
        scheme, _, rest = data.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"
    return repr(os.fspath(data) if isinstance(data, os.PathLike) else data)
