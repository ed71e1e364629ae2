"""Reads as much of some data as it takes to say what it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headrace.base.errors import HeadraceError, InspectError, RecordError
from headrace.inspecting.inspection import Inspection, as_plain, type_name
from headrace.inspecting.opening import open_data
from headrace.sources.source import BadRecord, Source
from headrace.streams.recipe import PlannedSource
from headrace.streams.stream import Stream

if TYPE_CHECKING:
    from headrace.sources.files import Paths

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
        format: "text", "csv", "tsv", "jsonl", "parquet", "arrow", "tar", "sqlite" or "postgresql". If None, it is told
            by the name of the files, or else by how they begin.
        query: of a database; may be left out if that has one table.
        samples: how many rows to show.
        most_rows: where the number of rows is not known, so many are counted at most.
        options: those of the function that reads this format: `separator=";"`, `storage_options={...}`.

    Raises:
        InspectError: nobody knows the format, or the data cannot be read as what it should be; says what to do.
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
    """The number of rows: as it is known, else counted, else reckoned from the blocks that were counted."""
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
    """The types that were seen in each field; rows that are no dicts are one column."""
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
