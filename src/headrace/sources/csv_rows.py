"""Tables in text: CSV, TSV and the like."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, final

import numpy as np

from headrace.base.errors import RecordError
from headrace.base.optional import is_installed
from headrace.sources.csv_format import CsvFormat, CsvSchema, split_lines
from headrace.sources.csv_parse import PythonParser
from headrace.sources.csv_schema import find_schema, numbered_names, take_header
from headrace.sources.encodings import TextEncoding
from headrace.sources.file_source import FileOptions, FileSource, bad_record
from headrace.sources.files import Paths
from headrace.sources.lines import LineEnds, RecordEnds, Segment, SegmentReader
from headrace.sources.quoting import QuotedRecordEnds
from headrace.sources.source import Block, Chunk, FileVersion, OnBad, leave_out

PIECE_BYTES = 1 << 20  # enough for what pyarrow does once for each piece to weigh little
_SAMPLE_RECORDS = 10_000
_UTF8_MARK = "\ufeff".encode()


@final
class CsvSource(FileSource):
    """The records of tables in text files, as columns or as dicts.

    pyarrow parses them if it is installed, else Python's csv; the result is the same. A record with too many or too few
    fields, or with a text that is no value of its column's type, is a bad one. Empty lines are no records.

    Guarantees: a column has one type in all blocks. If none is given, it is the first of int, float, bool and str that
    fits the first 10,000 records, or the first megabyte of them, if that is less.

    Raises:
        ValueError, when the columns are first needed: see `find_schema`.
        RecordError, when it is read: a file has another header than the first one; or a newline stands in quotes, and
            `newlines_in_values` is False.
    """

    format = "csv"

    def __init__(self, paths: Paths, table: CsvFormat | None = None, options: FileOptions | None = None) -> None:
        super().__init__(paths, options)
        self.table = table or CsvFormat()
        self._schema: CsvSchema | None = None

    def schema(self) -> CsvSchema:
        """The columns, found in the beginning of the first file that has records, and then remembered."""
        if self._schema is None:
            self._schema = self._find_schema()
        return self._schema

    def blocks(self) -> Sequence[Block]:
        self.schema()  # so that it is found once, before the source is sent to workers
        return super().blocks()

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "separator": self.table.separator, "columns": dict(self.schema().types)}

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
        for segment, _ in self._segments(whole):
            while waiting and waiting[-1] <= segment.offset + len(segment.content):
                end = ends.first_after(segment.content, max(0, waiting.pop() - segment.offset - 1))
                yield segment.offset + (end or len(segment.content))

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        n_lines = 0
        header_due = self.table.header and block.start == 0
        for segment, encoding in self._segments(block):
            records = segment
            if header_due:
                header, records = self._split_header(segment, encoding, block.path)
                self._check_header(header, block)
                header_due = not header
            before = n_lines + segment.content.count(b"\n", 0, records.offset - segment.offset)
            records = self._without_unclosed(records, block, before, on_bad)
            chunk = self._parse(records, encoding, block, before, on_bad)
            if chunk is not None:
                yield chunk
            n_lines += _count_newlines(segment.content)

    def _segments(self, block: Block) -> Generator[tuple[Segment, TextEncoding], None, None]:
        """The whole records of a block, without a byte order mark."""
        start = block.start if self.table.has_quoted_newlines else max(0, block.start - 1)
        stream, encoding = self._open(block, start)
        with stream:
            reader = SegmentReader(
                stream,
                start,
                block.stop,
                self._ends(),
                self.options.max_record_bytes,
                self._refuse_too_long(block),
                PIECE_BYTES,
            )
            if start < block.start:
                reader.seek_record()
            elif start == 0:
                reader.skip_mark(encoding.mark)
            for segment in reader:
                yield segment, encoding

    def _refuse_too_long(self, block: Block) -> Any:
        def refuse(offset: int, beginning: bytes) -> None:
            problem = (
                f"a record is longer than max_record_bytes={self.options.max_record_bytes}; is a quote never closed?"
            )
            raise RecordError(str(bad_record(block, 0, offset, beginning, problem)))

        return refuse

    def _ends(self) -> RecordEnds:
        return self._quoted_ends() if self.table.has_quoted_newlines else LineEnds(b"\n")

    def _quoted_ends(self) -> QuotedRecordEnds:
        return QuotedRecordEnds(self.table.separator.encode(), (self.table.quote or "").encode())

    def _split_header(self, segment: Segment, encoding: TextEncoding, path: str) -> tuple[list[str], Segment]:
        """The first record, and those behind it."""
        content = segment.content
        n_empty = len(content) - len(content.lstrip(b"\r\n"))
        first = content[: self._ends().first_after(content, n_empty) or len(content)]
        header, n = take_header(first, self.table, encoding.name, self.options.max_record_bytes)
        if self.table.names is None:
            header = [self._name(field, encoding, path) for field in header]
        return header, replace(segment, offset=segment.offset + n, content=content[n:])

    def _name(self, field: str, encoding: TextEncoding, path: str) -> str:
        """A field of the header, whose bytes that are no text were kept as surrogates, as a name."""
        raw = field.encode(encoding.name, "surrogateescape")
        try:
            return raw.decode(encoding.name, self.options.errors)
        except UnicodeError as error:
            raise RecordError(
                f"{path}: a name in its header is no text in {encoding.name}: {raw!r}. Pass the encoding of the "
                'file, such as encoding="latin-1", or names of your own.'
            ) from error

    def _check_header(self, header: list[str], block: Block) -> None:
        expected = list(self.schema().names)
        if header and self.table.names is None and header != expected:
            raise RecordError(f"The header of {block.path} must be that of the first file, {expected}, got {header}.")

    def _without_unclosed(self, segment: Segment, block: Block, n_lines: int, on_bad: OnBad | None) -> Segment:
        """The records without a last one that ends within quotes."""
        quote, content = self.table.quote, segment.content
        may_be = quote is not None and (segment.is_rest or not self.table.newlines_in_values)
        if (
            not may_be
            or quote is None
            or quote.encode() not in content
            or not self._quoted_ends().ends_in_quotes(content)
        ):
            return segment
        if not self.table.newlines_in_values:
            raise RecordError(
                f"{block.path} has a newline in quotes, or a quote that is never closed, before byte "
                f"{segment.offset + len(content)}. Pass newlines_in_values=True."
            )
        start = self._quoted_ends().last(content)
        line = n_lines + content.count(b"\n", 0, start)
        record = bad_record(block, line, segment.offset + start, content[start:], "a quote is never closed")
        leave_out(record, on_bad)
        return replace(segment, content=content[:start])

    def _parse(
        self, segment: Segment, encoding: TextEncoding, block: Block, n_lines: int, on_bad: OnBad | None
    ) -> Chunk | None:
        """The good records of a segment: by pyarrow if all are good, else by Python."""
        content, options = segment.content, self.options
        if not content.strip(b"\r\n"):
            return None
        if is_installed("pyarrow") and (chunk := self._parse_with_arrow(content, encoding)) is not None:
            return chunk

        def report(line: int, offset: int, raw: bytes, problem: str) -> None:
            leave_out(bad_record(block, n_lines + line, segment.offset + offset, raw, problem), on_bad)

        parser = PythonParser(self.table, self.schema(), encoding.name, options.errors, options.max_record_bytes)
        return parser.parse(content, report)

    def _parse_with_arrow(self, content: bytes, encoding: TextEncoding) -> Chunk | None:
        from headrace.sources.arrow_csv import parse_with_arrow

        if len(content) > self.options.max_record_bytes:
            return None  # pyarrow does not tell how long each record is
        try:
            if encoding.name != "utf-8" or self.options.errors != "strict":
                content = content.decode(encoding.name, self.options.errors).encode()
        except UnicodeError:
            return None
        if content.startswith(_UTF8_MARK):
            return None  # pyarrow would drop it, though it is not at the beginning of the file
        return parse_with_arrow(content, self.table, self.schema())

    def _find_schema(self) -> CsvSchema:
        header: list[str] = []
        rows: list[list[str]] = []
        for file in self.versions():
            if file.size != 0 and not rows:
                found, rows = self._sample(file)
                header = header or found
        return find_schema(header, rows, self.table)

    def _sample(self, file: FileVersion) -> tuple[list[str], list[list[str]]]:
        """The names of the columns, and the first records of a file."""
        with closing(self._segments(Block(file.path, 0, file.size if self._can_cut(file) else None))) as segments:
            segment, encoding = next(segments, (Segment(0, b""), self._encoding()))
        header, behind = self._split_header(segment, encoding, file.path) if self.table.header else ([], segment)
        lines = split_lines(behind.content.decode(encoding.name, "replace"))
        records = (row for row in self.table.records(lines, self.options.max_record_bytes) if row)
        rows = list(islice(records, _SAMPLE_RECORDS))
        return header or numbered_names(len(rows[0]) if rows else 0), rows


def _count_newlines(content: bytes) -> int:
    """As `content.count` does it, but quicker where there are many."""
    return int(np.count_nonzero(np.frombuffer(content, np.uint8) == ord("\n")))
