"""Tables in text: CSV, TSV and the like."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, NamedTuple, final

import numpy as np

from headrace.base.errors import RecordError
from headrace.base.optional import is_installed
from headrace.sources.chunks import ColumnChunk, TypedColumn
from headrace.sources.csv_format import (
    CsvFormat,
    CsvSchema,
    QuotedRecordEnds,
    convert_columns,
    converter,
    find_schema,
    is_lossless_float,
    numbered_names,
    split_lines,
    take_header,
)
from headrace.sources.encodings import TextEncoding
from headrace.sources.files import Paths
from headrace.sources.options import FileOptions
from headrace.sources.source import BadRecord, Block, Chunk, FileVersion, OnBad, skip_bad
from headrace.sources.text_files import LineEnds, RecordEnds, RecordSource, Segment, TooLong, bad_record

Report = Callable[[int, int, bytes, str], None]
"""Called for a bad record with the number of lines and bytes before it, its bytes, and what is wrong with it."""


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
        return ColumnChunk({name: TypedColumn(values, self._schema.types[name]) for name, values in columns.items()})

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
        """Each record with its bytes; those that cannot be decoded become surrogates."""
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
    """Which type would accept a text that its column's type does not."""
    if kind == "int" and is_lossless_float(text):
        return f"types={{{name!r}: 'float'}} would take it"
    return f"types={{{name!r}: 'str'}} would take any text"


def _next(reader: Any) -> tuple[list[str], str | None]:
    """The next record, or what is wrong with it."""
    try:
        return next(reader), None
    except csv.Error as error:
        return [], str(error)


_SAMPLE_RECORDS = 10_000
_UTF8_MARK = "\ufeff".encode()


@final
class CsvSource(RecordSource):
    """The records of tables in text files, as columns or as dicts.

    pyarrow parses them if it is installed, else Python's csv; the result is the same. A record with too many or too few
    fields, or with a text that does not fit its column's type, is bad. Empty lines are skipped.

    Guarantees: a column has one type in all blocks. If none is given, it is the first of int, float, bool and str that
    fits the first 10,000 records, or the first megabyte of them, if that is less.

    Raises:
        ValueError, when the columns are first needed: see `find_schema`.
        RecordError, when it is read: a file has another header than the first one; or a newline is in quotes, and
            `newlines_in_values` is False.
    """

    format = "csv"
    _piece_bytes = 1 << 20  # enough for what pyarrow does once for each piece to weigh little

    def __init__(self, paths: Paths, table: CsvFormat | None = None, options: FileOptions | None = None) -> None:
        super().__init__(paths, options)
        self.table = table or CsvFormat()
        self._blank_before_first = b"\r\n" if self.table.header else b""
        self._schema: CsvSchema | None = None
        self._bad_headers: dict[str, RecordError | None] = {}

    def lenient(self) -> CsvSource:
        source = super().lenient()
        source._schema, source._bad_headers = None, {}
        return source

    def schema(self) -> CsvSchema:
        """The columns, found in the beginning of the first file that has records, and then remembered."""
        if self._schema is None:
            self._schema = self._find_schema()
        return self._schema

    def blocks(self) -> Sequence[Block]:
        self.schema()  # so that it is found once, before the source is sent to workers
        return super().blocks()

    def describe(self) -> dict[str, Any]:
        columns = {**self._path_columns.types, **self.schema().types}
        columns = {name: columns[name] for name in [*self.schema().names, *self._path_columns.types]}
        return {**super().describe(), "separator": self.table.separator, "columns": columns}

    def _can_cut_encoding(self) -> bool:
        return self._encoding().is_ascii_in_bytes

    def _cut(self, file: FileVersion) -> list[Block]:
        """Ranges of bytes; if newlines may be quoted, they begin where records do, for which the file is read once."""
        blocks = super()._cut(file)
        if len(blocks) < 2 or not self.table.has_quoted_newlines:
            return blocks
        size = file.size or 0
        borders = self._record_starts(Block(file.path, 0, size), [block.start for block in blocks[1:]])
        edges = sorted({0, *borders, size})
        return [Block(file.path, start, stop, n_bytes=stop - start) for start, stop in pairwise(edges)]

    def _record_starts(self, whole: Block, places: Sequence[int]) -> Iterator[int]:
        """Where the first record starts at or behind each place."""
        ends, waiting = self._ends(), list(reversed(places))
        too_long = _pass_over if self._is_lenient else self._refuse_too_long(whole)
        for segment, _ in self._segments(whole, too_long):
            while waiting and waiting[-1] <= segment.offset + len(segment.content):
                end = ends.first_after(segment.content, max(0, waiting.pop() - segment.offset - 1))
                yield segment.offset + (end or len(segment.content))

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        if on_bad is not None:
            self._check_file(block)
        n_lines, extra = 0, self._path_columns.values(block.path)
        header_due = self.table.header and block.start == 0

        def too_long(offset: int, beginning: bytes) -> None:
            if header_due:  # what follows would be taken for the header
                self._refuse_too_long(block)(offset, beginning)
            record = beginning[: self._ends().after_damage(beginning) or len(beginning)]
            problem = f"{self._too_long()} Only its first line is left out"
            skip_bad(bad_record(block, n_lines, offset, record, problem), on_bad)

        with closing(self._segments(block, too_long)) as segments:
            for segment, encoding in segments:
                records = segment
                if header_due:
                    header, records = self._split_header(segment, encoding, block.path)
                    self._check_header(header, block)
                    header_due = not header
                before = n_lines + segment.content.count(b"\n", 0, records.offset - segment.offset)
                records, unclosed = self._without_unclosed(records, block, before)
                chunk = self._parse(records, encoding, block, before, on_bad)
                if unclosed is not None:
                    skip_bad(unclosed, on_bad)
                if chunk is not None:
                    yield chunk.with_constants(extra, self._path_columns.types) if extra else chunk
                n_lines += _count_newlines(segment.content)

    def _finds_starts(self) -> bool:
        return not self.table.has_quoted_newlines

    def _refuse_too_long(self, block: Block) -> TooLong:
        def refuse(offset: int, beginning: bytes) -> None:
            raise RecordError(str(bad_record(block, 0, offset, beginning, self._too_long())))

        return refuse

    def _too_long(self) -> str:
        return f"a record is longer than max_record_bytes={self._max_record_bytes}; is a quote never closed?"

    def _ends(self, encoding: TextEncoding | None = None) -> RecordEnds:
        return self._quoted_ends() if self.table.has_quoted_newlines else LineEnds(b"\n")

    def _quoted_ends(self) -> QuotedRecordEnds:
        return QuotedRecordEnds(self.table.separator.encode(), (self.table.quote or "").encode())

    def _split_header(self, segment: Segment, encoding: TextEncoding, path: str) -> tuple[list[str], Segment]:
        """The first record, and those behind it."""
        content = segment.content
        n_empty = len(content) - len(content.lstrip(b"\r\n"))
        first = content[: self._ends().first_after(content, n_empty) or len(content)]
        header, n = take_header(first, self.table, encoding.name, self._max_record_bytes)
        if self.table.names is None:
            header = [self._name(field, encoding, path) for field in header]
        return header, replace(segment, offset=segment.offset + n, content=content[n:])

    def _name(self, field: str, encoding: TextEncoding, path: str) -> str:
        """A field of the header as a name; bytes that could not be decoded are surrogates in it."""
        raw = field.encode(encoding.name, "surrogateescape")
        try:
            return raw.decode(encoding.name, self.options.errors)
        except UnicodeError as error:
            raise RecordError(
                f"{path}: a name in its header cannot be decoded as {encoding.name}: {raw!r}. Pass the encoding of the "
                'file, such as encoding="latin-1", or names of your own.'
            ) from error

    def _check_header(self, header: list[str], block: Block) -> None:
        expected = list(self.schema().names)
        if header and self.table.names is None and header != expected:
            raise RecordError(f"The header of {block.path} must be that of the first file, {expected}, got {header}.")

    def _without_unclosed(self, segment: Segment, block: Block, n_lines: int) -> tuple[Segment, BadRecord | None]:
        """The records without a last one that ends within quotes; and that one."""
        quote, content, ends = (self.table.quote or "").encode(), segment.content, self._quoted_ends()
        may_be = quote in content and (segment.is_rest or not self.table.newlines_in_values)
        if not (quote and may_be and ends.ends_in_quotes(content)):
            return segment, None
        if not self.table.newlines_in_values:
            raise RecordError(
                f"{block.path} has a newline in quotes, or a quote that is never closed, before byte "
                f"{segment.offset + len(content)}. Pass newlines_in_values=True."
            )
        start = ends.last(content)
        line = n_lines + content.count(b"\n", 0, start)
        record = bad_record(block, line, segment.offset + start, content[start:], "a quote is never closed")
        return replace(segment, content=content[:start]), record

    def _parse(
        self, segment: Segment, encoding: TextEncoding, block: Block, n_lines: int, on_bad: OnBad | None
    ) -> ColumnChunk | None:
        """The good records of a segment: by pyarrow if all are good, else by Python."""
        content, options = segment.content, self.options
        if not content.strip(b"\r\n"):
            return None
        if is_installed("pyarrow") and (chunk := self._parse_with_arrow(content, encoding)) is not None:
            return chunk

        def report(line: int, offset: int, raw: bytes, problem: str) -> None:
            skip_bad(bad_record(block, n_lines + line, segment.offset + offset, raw, problem), on_bad)

        parser = PythonParser(self.table, self.schema(), encoding.name, options.errors, self._max_record_bytes)
        return parser.parse(content, report)

    def _parse_with_arrow(self, content: bytes, encoding: TextEncoding) -> ColumnChunk | None:
        from headrace.sources.arrow_csv import parse_with_arrow

        if len(content) > self._max_record_bytes:
            return None  # pyarrow does not report the length of each record
        try:
            if encoding.name != "utf-8" or self.options.errors != "strict":
                content = content.decode(encoding.name, self.options.errors).encode()
        except UnicodeError:
            return None
        if content.startswith(_UTF8_MARK):
            return None  # pyarrow would drop it, though it is not at the beginning of the file
        return parse_with_arrow(content, self.table, self.schema())

    def _check_file(self, block: Block) -> None:
        """See that a file has the right header before any block of it is read: others would have wrong names.

        Raises:
            RecordError: it has not.
        """
        if not self.table.header or self.table.names is not None:
            return
        if block.path not in self._bad_headers:
            file = self._listed()[block.path]
            try:
                self._check_header(self._sample(file, most=0)[0], block)
                self._bad_headers[block.path] = None
            except RecordError as error:
                self._bad_headers[block.path] = error
        problem = self._bad_headers[block.path]
        if problem is not None:
            raise RecordError(str(problem))

    def _find_schema(self) -> CsvSchema:
        header: list[str] = []
        rows: list[list[str]] = []
        problem: RecordError | None = None
        for file in self.versions():
            if file.size != 0 and not rows:
                try:
                    found, rows = self._sample(file)
                    header = header or found
                except RecordError as error:
                    if not self._is_lenient:
                        raise
                    problem = problem or error
        if problem is not None and not header:
            raise problem
        return find_schema(header, rows, self.table)

    def _sample(self, file: FileVersion, most: int = _SAMPLE_RECORDS) -> tuple[list[str], list[list[str]]]:
        """The names of the columns, and the first records of a file."""
        block = Block(file.path, 0, file.size if self._can_cut(file) else None)
        content, encoding = b"", self._encoding()

        def too_long(offset: int, beginning: bytes) -> None:
            # A header that is too long is no header; but another record can be left out.
            if not content and (self.table.header or not self._is_lenient):
                self._refuse_too_long(block)(offset, beginning)

        with closing(self._segments(block, too_long)) as segments:
            for segment, found in segments:
                encoding = found
                if content or segment.content.strip(b"\r\n"):
                    content += segment.content
                if content and len(content) + self._max_record_bytes >= self._piece_bytes:
                    break
        segment = Segment(0, content)
        header, behind = self._split_header(segment, encoding, file.path) if self.table.header else ([], segment)
        lines = split_lines(behind.content.decode(encoding.name, "replace"))
        records = (row for row in self.table.records(lines, self._max_record_bytes) if row)
        rows = list(islice(records, most))
        return header or numbered_names(len(rows[0]) if rows else 0), rows


def _pass_over(offset: int, beginning: bytes) -> None:
    """Leave a record out; whoever reads it reports it."""


def _count_newlines(content: bytes) -> int:
    """As `content.count` does it, but quicker where there are many."""
    return int(np.count_nonzero(np.frombuffer(content, np.uint8) == ord("\n")))
