"""Text files: each line a row, or each word, or each file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import numpy as np

from headrace.sources.chunks import ValueChunk
from headrace.sources.file_source import FileSource, bad_record
from headrace.sources.line_source import LineSource, split_lines
from headrace.sources.source import Block, Chunk, FileVersion, OnBad, leave_out


class SplitChunk:
    """A text that is split when its rows are wanted. It forgets them with the last one: so they stay in the cache.

    Args:
        n_rows: how many rows `split` makes of it.
    """

    def __init__(self, text: str, split: Callable[[str], list[str]], n_rows: int, column: str) -> None:
        self._text = text
        self._split = split
        self._n_rows = n_rows
        self._column = column
        self._rows: list[str] | None = None

    def __len__(self) -> int:
        return self._n_rows

    def slice(self, start: int, stop: int) -> ValueChunk:
        rows = self.rows()
        self._rows = rows if stop < self._n_rows else None
        return ValueChunk(rows[start:stop], self._column)

    def rows(self) -> list[str]:
        return self._split(self._text) if self._rows is None else self._rows

    def columns(self) -> dict[str, list[str]]:
        return {self._column: self.rows()}


@final
class TextSource(LineSource):
    """The lines of text files, as strings without their newlines; as a column, `text`."""

    format = "text"

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        for lines in self._lines(block, on_bad):
            if lines.text is None:
                yield ValueChunk(lines.good, "text")
            else:
                yield SplitChunk(lines.text, split_lines, lines.count, "text")


@final
class WordSource(LineSource):
    """The words of text files: whatever stands between white space; as a column, `word`."""

    format = "text, words"
    _piece_bytes = 24 << 10  # words take much more memory than what they are split from

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        for lines in self._lines(block, on_bad):
            text = "\n".join(lines.good) if lines.text is None else lines.text
            if text.isascii():
                yield SplitChunk(text, str.split, _count_words(text), "word")
            else:
                yield ValueChunk(text.split(), "word")


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
        most = self.options.max_record_bytes
        stream, encoding = self._open(block, 0)
        with stream:
            content = stream.read(most + 1)
        try:
            if len(content) > most:
                raise ValueError(f"the file is longer than max_record_bytes={most}")
            text = content.removeprefix(encoding.mark).decode(encoding.name, self.options.errors)
        except ValueError as error:
            leave_out(bad_record(block, 0, 0, content, error), on_bad)
            return
        yield ValueChunk([text], "text")
