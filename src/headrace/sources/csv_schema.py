"""Finds the columns of a table: their names in its header, their types in its first records."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.sources.csv_format import CsvFormat, CsvSchema, split_lines
from headrace.sources.csv_types import infer_type, type_name


def take_header(content: bytes, table: CsvFormat, encoding: str, longest: int) -> tuple[list[str], int]:
    """The fields of the first record, and how many bytes it takes with the empty lines before it."""
    lines = split_lines(content.decode(encoding, "surrogateescape"))
    reader = table.records(lines, longest)
    header = next((row for row in reader if row), [])
    return header, len("".join(lines[: reader.line_num]).encode(encoding, "surrogateescape"))


def find_schema(header: Sequence[str], rows: Sequence[Sequence[str]], table: CsvFormat) -> CsvSchema:
    """The columns of a table.

    Args:
        header: the names, unless `table` has them.
        rows: some records; those with another number of fields than there are columns do not count.

    Raises:
        ValueError: two columns have the same name, or a type is given for one that is not there.
    """
    names = tuple(header if table.names is None else table.names)
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise ValueError(
            f"Each column must have a name of its own, got {', '.join(map(repr, doubles))} twice. Pass names."
        )
    given = {name: type_name(kind) for name, kind in (table.types or {}).items()}
    unknown = [name for name in given if name not in names]
    if unknown and names:
        raise ValueError(f"types must be for columns of the table, got {unknown}; it has {list(names)}.")
    samples = zip(*(row for row in rows if len(row) == len(names)), strict=True)
    columns = dict(zip(names, samples, strict=False))
    nulls = table.null_texts
    return CsvSchema(names, {name: given.get(name) or infer_type(columns.get(name, ()), nulls) for name in names})


def numbered_names(n: int) -> list[str]:
    return [f"f{i}" for i in range(n)]
