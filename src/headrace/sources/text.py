"""Text files and JSON lines: each line a row, or each word, each file, each JSON value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.sources.chunks import ObjectChunk, RecordChunk, TextChunk
from headrace.sources.encodings import TextEncoding
from headrace.sources.source import Block, Chunk, FileVersion, OnBad, skip_bad
from headrace.sources.text_files import FileSource, LineEnds, RecordSource, Segment, bad_record

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


class LineSource(RecordSource):
    """A source whose records are lines. A line ends with LF or CRLF; a CR elsewhere is part of it."""

    # Small, so that a piece and its lines stay in the processor's cache: twice as fast as a megabyte.
    _piece_bytes = 120 << 10

    def _ends(self, encoding: TextEncoding) -> LineEnds:
        return LineEnds(encoding.newline)

    def _lines(self, block: Block, on_bad: OnBad | None) -> Iterator[Lines]:
        """The lines that start in a block, some thousands at a time."""
        number = 0

        def too_long(offset: int, beginning: bytes) -> None:
            nonlocal number
            skip_bad(bad_record(block, number, offset, beginning, self._too_long()), on_bad)
            number += 1

        with closing(self._segments(block, too_long)) as segments:
            for segment, encoding in segments:
                lines = self._decode(segment, encoding, block, number, on_bad)
                yield lines
                number += lines.count

    def _decode(
        self, segment: Segment, encoding: TextEncoding, block: Block, first: int, on_bad: OnBad | None
    ) -> Lines:
        if len(segment.content) <= self._max_record_bytes:
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
            if len(raw.removesuffix(encoding.newline)) > self._max_record_bytes:
                skip_bad(bad_record(block, number, offset, raw, self._too_long()), on_bad)
                continue
            try:
                line = raw.decode(encoding.name, self.options.errors)
            except ValueError as error:
                skip_bad(bad_record(block, number, offset, raw, error), on_bad)
                continue
            texts.append(line[:-2] if line.endswith("\r\n") else line.removesuffix("\n"))
            numbers.append(number)
        return Lines(None, texts, number + 1 - first, first, segment, encoding, numbers)

    def _too_long(self) -> str:
        return f"the line is longer than max_record_bytes={self._max_record_bytes}"


def raw_lines(segment: Segment, encoding: TextEncoding) -> Iterator[tuple[int, bytes]]:
    """Each line of a segment as bytes, with its newline, and where it begins in the file."""
    ends, start = LineEnds(encoding.newline), 0
    while start < len(segment.content):
        end = ends.first_after(segment.content, start) or len(segment.content)
        yield segment.offset + start, segment.content[start:end]
        start = end


def split_lines(text: str) -> list[str]:
    """The lines of a text; what follows the last newline is one too, unless it is empty."""
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return lines


def _count_lines(segment: Segment, encoding: TextEncoding, text: str) -> int:
    if encoding.newline == b"\n":  # a byte that is not part of any other character
        n = int(np.count_nonzero(np.frombuffer(segment.content, np.uint8) == _NEWLINE))  # ten times faster than `count`
    else:
        n = text.count("\n")
    return n + (bool(text) and not text.endswith("\n"))


@final
class TextSource(LineSource):
    """The lines of text files, as strings without their newlines; as a column, `text`."""

    format = "text"

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        for lines in self._lines(block, on_bad):
            if lines.text is None:
                yield ObjectChunk(lines.good, "text")
            else:
                yield TextChunk(lines.text, "\n", lines.count, "text")


@final
class WordSource(LineSource):
    """The words of text files: whatever is between white space; as a column, `word`."""

    format = "text, words"
    _piece_bytes = 64 << 10  # words take much more memory than what they are split from

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        for lines in self._lines(block, on_bad):
            if lines.text is None:
                yield ObjectChunk([word for line in lines.good for word in line.split()], "word")
            else:
                yield _words(lines.text)


def _words(text: str) -> Chunk:
    if not text.isascii():
        return ObjectChunk(text.split(), "word")
    spaced = text.replace("\n", " ")
    codes = np.frombuffer(spaced.encode("ascii"), np.uint8)
    ends = codes == _SPACE
    if _has_empty(ends) or codes.min() < _SPACE:
        return TextChunk(text, None, _count_words(text), "word")
    n_words = int(np.count_nonzero(ends)) + (not ends[-1])
    return TextChunk(spaced, " ", n_words, "word")  # which is split faster than by any white space


def _has_empty(ends: NDArray[np.bool_]) -> bool:
    """Whether some word is empty, given where words end."""
    return bool(not ends.size or ends[0] or (ends[1:] & ends[:-1]).any())


_SPACE = ord(" ")
_IS_WORD = bytes(not chr(code).isspace() for code in range(128)) + bytes(128)


def _count_words(text: str) -> int:
    """How many words an ASCII text has, without making them."""
    is_word = np.frombuffer((" " + text).encode("ascii").translate(_IS_WORD), np.uint8)
    return int(np.count_nonzero(is_word[1:] > is_word[:-1]))


@final
class WholeTextSource(FileSource):
    """Whole text files, each a row; as a column, `text`. Newlines are as they are in the file."""

    format = "text, whole files"

    def _cut(self, file: FileVersion) -> list[Block]:
        return [Block(file.path, 0, None, n_bytes=file.size or 0)]

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        most = self._max_record_bytes
        stream, encoding = self._open(block, 0)
        with stream:
            content = stream.read(most + 1)
        try:
            if len(content) > most:
                raise ValueError(f"the file is longer than max_record_bytes={most}")
            text = content.removeprefix(encoding.mark).decode(encoding.name, self.options.errors)
        except ValueError as error:
            skip_bad(bad_record(block, 0, 0, content, error), on_bad)
            return
        yield ObjectChunk([text], "text")


_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


@final
class JsonLinesSource(LineSource):
    """The values of files with one JSON value a line. Blank lines are skipped.

    Objects are dicts, with a column for each key; other values have the column `value`.
    """

    format = "jsonl"

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        extra = self._path_columns.values(block.path)
        for lines in self._lines(block, on_bad):
            values = self._parse(lines, block, on_bad)
            if all(type(value) is dict for value in values):
                yield RecordChunk([_with_more(value, extra) for value in values] if extra else values)
            else:
                yield ObjectChunk(values, "value")

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
            skip_bad(bad_record(block, number, offset, raw, error), on_bad)

    def _raw(self, lines: Lines, number: int) -> tuple[int, bytes]:
        """Where a line begins, and its bytes."""
        every = raw_lines(lines.segment, lines.encoding)
        return next(found for n, found in enumerate(every, lines.first_number) if n == number)


def _with_more(value: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A dict with more keys, behind its own."""
    return {**value, **{name: more[name] for name in more if name not in value}}
