"""Tables in text, parsed by Python's csv: where pyarrow is not installed, and wherever a record is bad."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.sources.chunks import ColumnChunk
from headrace.sources.csv_format import CsvFormat, CsvSchema, split_lines
from headrace.sources.csv_types import convert_columns, converter, is_lossless_float

Report = Callable[[int, int, bytes, str], None]
"""Hears of a bad record: how many lines and bytes come before it, its bytes, and what is wrong with it."""


class _Record(NamedTuple):
    fields: list[str]
    problem: str | None
    first_line: int
    raw: bytes


class PythonParser:
    """Parses records of one schema.

    Args:
        max_record_bytes: a longer record, without its newline, is a bad one.
    """

    def __init__(self, table: CsvFormat, schema: CsvSchema, encoding: str, errors: str, max_record_bytes: int) -> None:
        self._table = table
        self._schema = schema
        self._encoding = encoding
        self._errors = errors
        self._max_record_bytes = max_record_bytes
        text_nulls = frozenset(table.nulls or ())
        self._converters = [converter(schema.types[name], table.null_texts, text_nulls) for name in schema.names]

    def parse(self, content: bytes, report: Report) -> ColumnChunk:
        """The good records of some bytes, which have no header."""
        try:
            columns = self._parse_all(content)
        except (ValueError, csv.Error):  # and now record by record, to see which one it is
            columns = self._parse_each(content, report)
        n_rows = len(next(iter(columns.values()), ()))
        return ColumnChunk(columns, self._schema.types, n_rows)

    def _parse_all(self, content: bytes) -> dict[str, list[Any]]:
        """All records; ValueError if one of them is bad."""
        if len(content) > self._max_record_bytes:
            raise ValueError("some record may be too long")
        lines = split_lines(content.decode(self._encoding, self._errors))
        rows = [row for row in self._table.records(lines, self._max_record_bytes) if row]
        n = len(self._schema.names)
        if any(len(row) != n for row in rows):
            raise ValueError("some record has too many or too few fields")
        return convert_columns(rows, self._schema.names, self._converters)

    def _parse_each(self, content: bytes, report: Report) -> dict[str, list[Any]]:
        good = []
        offset = 0
        for record in self._records(content):
            problem = record.problem or self._problem(record)
            if problem is not None:
                report(record.first_line, offset, record.raw, problem)
            elif record.fields:
                good.append(record.fields)
            offset += len(record.raw)
        return convert_columns(good, self._schema.names, self._converters)

    def _records(self, content: bytes) -> Iterator[_Record]:
        """Each record with its bytes; those that are no text are kept as surrogates, which no text has."""
        escape = "surrogateescape" if self._errors == "strict" else self._errors
        lines = split_lines(content.decode(self._encoding, escape))
        reader = self._table.records(lines, self._max_record_bytes)
        reached = 0
        while reached < len(lines):
            fields, problem = _next(reader)
            first, reached = reached, reader.line_num
            yield _Record(fields, problem, first, "".join(lines[first:reached]).encode(self._encoding, escape))

    def _problem(self, record: _Record) -> str | None:
        """What is wrong with a record, if anything."""
        if len(record.raw.removesuffix(b"\n")) > self._max_record_bytes:
            return f"the record is longer than max_record_bytes={self._max_record_bytes}"
        try:
            record.raw.decode(self._encoding, self._errors)
        except UnicodeDecodeError as error:
            return f"{type(error).__name__}: {error}"
        names = self._schema.names
        if record.fields and len(record.fields) != len(names):
            return f"the record must have {len(names)} fields, got {len(record.fields)}"
        for name, text, convert in zip(names, record.fields, self._converters, strict=False):
            try:
                convert(text)
            except ValueError as error:
                return f"column {name!r}: {error}; {_cure(name, self._schema.types[name], text)}"
        return None


def _cure(name: str, kind: str, text: str) -> str:
    """Which type would take a text that is no value of its column's."""
    if kind == "int" and is_lossless_float(text):
        return f"types={{{name!r}: 'float'}} would take it"
    return f"types={{{name!r}: 'str'}} would take any text"


def _next(reader: Any) -> tuple[list[str], str | None]:
    """The next record, or what is wrong with it."""
    try:
        return next(reader), None
    except csv.Error as error:
        return [], str(error)
