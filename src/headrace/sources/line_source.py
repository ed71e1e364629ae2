"""Lines of text files, decoded: what text and JSON lines are read from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.sources.encodings import TextEncoding
from headrace.sources.file_source import FileSource, bad_record
from headrace.sources.lines import LineEnds, Segment, SegmentReader
from headrace.sources.source import Block, OnBad, leave_out

_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class Lines:
    """Some consecutive lines of a block, without their newlines.

    Attributes:
        text: all of them, each with a newline, if none was bad.
        good: those that were not bad, else.
        count: how many there are, with the bad ones.
        numbers: which lines of the block they are; None if they are `first_number` and those after it.
        segment: the bytes that they come from.
        encoding: that of the bytes.
    """

    text: str | None
    good: list[str]
    count: int
    first_number: int
    segment: Segment
    encoding: TextEncoding
    numbers: list[int] | None = None

    def texts(self) -> list[str]:
        """The lines; those that were bad are not among them."""
        return self.good if self.text is None else split_lines(self.text)


class LineSource(FileSource):
    """A source whose records are lines. A line ends with LF or CRLF; a CR elsewhere is part of it."""

    # Small, so that a piece and its lines stay in the processor's cache: twice as fast as a megabyte.
    _piece_bytes = 120 << 10

    def _lines(self, block: Block, on_bad: OnBad | None) -> Iterator[Lines]:
        """The lines that start in a block, some thousands at a time."""
        unit = self._encoding().unit_bytes
        start = max(0, block.start - unit)  # whether a line starts at `start` is told by what stands before it
        stream, encoding = self._open(block, start)
        number = 0

        def too_long(offset: int, beginning: bytes) -> None:
            nonlocal number
            leave_out(bad_record(block, number, offset, beginning, self._too_long()), on_bad)
            number += 1

        with stream:
            ends = LineEnds(encoding.newline)
            reader = SegmentReader(
                stream, start, block.stop, ends, self.options.max_record_bytes, too_long, self._piece_bytes
            )
            if block.start > 0:
                reader.seek_record()
            else:
                reader.skip_mark(encoding.mark)
            for segment in reader:
                lines = self._decode(segment, encoding, block, number, on_bad)
                yield lines
                number += lines.count

    def _decode(
        self, segment: Segment, encoding: TextEncoding, block: Block, first: int, on_bad: OnBad | None
    ) -> Lines:
        if len(segment.content) <= self.options.max_record_bytes:
            try:
                text = segment.content.decode(encoding.name, self.options.errors)
                if "\r" in text:  # a search for one character is ten times faster than for two
                    text = text.replace("\r\n", "\n")
                return Lines(text, [], _count_lines(segment, encoding, text), first, segment, encoding)
            except UnicodeDecodeError:
                pass  # and now line by line, to see which one it is
        return self._decode_each(segment, encoding, block, first, on_bad)

    def _decode_each(
        self, segment: Segment, encoding: TextEncoding, block: Block, first: int, on_bad: OnBad | None
    ) -> Lines:
        texts, numbers = [], []
        number = first
        for number, (offset, raw) in enumerate(raw_lines(segment, encoding), first):
            try:
                texts.append(self._decode_line(raw, encoding))
                numbers.append(number)
            except ValueError as error:
                leave_out(bad_record(block, number, offset, raw, error), on_bad)
        return Lines(None, texts, number + 1 - first, first, segment, encoding, numbers)

    def _decode_line(self, raw: bytes, encoding: TextEncoding) -> str:
        if len(raw.removesuffix(encoding.newline)) > self.options.max_record_bytes:
            raise ValueError(self._too_long())
        line = raw.decode(encoding.name, self.options.errors)
        return line.removesuffix("\n") if not line.endswith("\r\n") else line[:-2]

    def _too_long(self) -> str:
        return f"the line is longer than max_record_bytes={self.options.max_record_bytes}"


def raw_lines(segment: Segment, encoding: TextEncoding) -> Iterator[tuple[int, bytes]]:
    """Each line of a segment as bytes, with its newline, and where it begins in the file."""
    ends, start = LineEnds(encoding.newline), 0
    while start < len(segment.content):
        end = ends.first_after(segment.content, start) or len(segment.content)
        yield segment.offset + start, segment.content[start:end]
        start = end


def split_lines(text: str) -> list[str]:
    """The lines of a text; what stands behind the last newline is one too, unless it is empty."""
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return lines


def _count_lines(segment: Segment, encoding: TextEncoding, text: str) -> int:
    if encoding.newline == b"\n":  # a byte that is no part of any other character
        n = int(np.count_nonzero(np.frombuffer(segment.content, np.uint8) == _NEWLINE))  # ten times faster than `count`
    else:
        n = text.count("\n")
    return n + (bool(text) and not text.endswith("\n"))
