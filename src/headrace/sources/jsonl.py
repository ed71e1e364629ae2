"""JSON lines: each line a JSON value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, final

from headrace.sources.chunks import ValueChunk
from headrace.sources.file_source import bad_record
from headrace.sources.line_source import Lines, LineSource, raw_lines
from headrace.sources.records import SampleChunk
from headrace.sources.source import Block, Chunk, OnBad, leave_out

_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


@final
class JsonLinesSource(LineSource):
    """The values of files with one JSON value a line. Lines of white space only are no records.

    Objects are dicts, with a column for each key; other values have the column `value`.
    """

    format = "jsonl"

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        for lines in self._lines(block, on_bad):
            values = self._parse(lines, block, on_bad)
            if all(type(value) is dict for value in values):
                yield SampleChunk(values)
            else:
                yield ValueChunk(values, "value")

    def _parse(self, lines: Lines, block: Block, on_bad: OnBad | None) -> list[Any]:
        values: list[Any] = []
        for i, line in enumerate(lines.texts()):
            try:
                # The scanner is what `json.loads` calls after some checks; most lines need none of them.
                value, end = _scan(line, 0)
                values.append(value if end == len(line) else json.loads(line))
            except (ValueError, StopIteration, RecursionError):
                self._parse_again(lines, i, line, block, values, on_bad)
        return values

    def _parse_again(
        self, lines: Lines, i: int, line: str, block: Block, values: list[Any], on_bad: OnBad | None
    ) -> None:
        """A line that is blank, begins with white space, or is bad."""
        if not line.strip(" \t\r\n"):
            return
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            number = lines.first_number + i if lines.numbers is None else lines.numbers[i]
            offset, raw = self._raw(lines, number)
            leave_out(bad_record(block, number, offset, raw, error), on_bad)

    def _raw(self, lines: Lines, number: int) -> tuple[int, bytes]:
        """Where a line begins, and its bytes."""
        every = raw_lines(lines.segment, lines.encoding)
        return next(found for n, found in enumerate(every, lines.first_number) if n == number)
