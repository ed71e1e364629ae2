"""Text files: each line a row, or each word, or each file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from headrace.sources.chunks import ValueChunk
from headrace.sources.file_source import FileSource, bad_record
from headrace.sources.line_source import LineSource
from headrace.sources.source import Block, Chunk, FileVersion, OnBad, leave_out


class SplitChunk:
    """A text that is split when its rows are wanted. It forgets them with the last one: so they stay in the cache.

    Args:
        separator: of its rows; see `split_text`.
        n_rows: how many rows it has.
    """

    def __init__(self, text: str, separator: str | None, n_rows: int, column: str) -> None:
        self.whole = text
        self.separator = separator
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
        return split_text(self.whole, self.separator) if self._rows is None else self._rows

    def columns(self) -> dict[str, list[str]]:
        return {self._column: self.rows()}

    def text(self, start: int, stop: int) -> str:
        """What `split_text` makes the rows [start, stop) of. It is the quicker, the nearer they are to an end."""
        if start == stop:
            return ""
        text = _without_first(self.whole, self.separator, start, self._n_rows - start)
        return _without_last(text, self.separator, self._n_rows - stop, stop - start)


def split_text(text: str, separator: str | None) -> list[str]:
    """The rows of a text: what stands between separators, or if None, between white space.

    What stands behind the last separator is one too, unless it is empty.
    """
    rows = text.split(separator)
    if separator is not None and not rows[-1]:
        del rows[-1]
    return rows


def _without_first(text: str, separator: str | None, n: int, n_left: int) -> str:
    """A text without its first rows; as many strings are made as there are rows on the smaller side."""
    if n <= n_left:
        return text.split(separator, n)[n] if n else text
    rows = text.rsplit(separator, n_left + _is_ended(text, separator))[1:]
    return (separator or " ").join(rows)


def _without_last(text: str, separator: str | None, n: int, n_left: int) -> str:
    if n <= n_left:
        return text.rsplit(separator, n + _is_ended(text, separator))[0] + (separator or "") if n else text
    rows = text.split(separator, n_left)[:n_left]
    return (separator or " ").join(rows) + (separator or "")


def _is_ended(text: str, separator: str | None) -> bool:
    """Whether a separator stands behind the last row, too."""
    return separator is not None and text.endswith(separator)


@final
class TextSource(LineSource):
    """The lines of text files, as strings without their newlines; as a column, `text`."""

    format = "text"

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        for lines in self._lines(block, on_bad):
            if lines.text is None:
                yield ValueChunk(lines.good, "text")
            else:
                yield SplitChunk(lines.text, "\n", lines.count, "text")


@final
class WordSource(LineSource):
    """The words of text files: whatever stands between white space; as a column, `word`."""

    format = "text, words"
    _piece_bytes = 64 << 10  # words take much more memory than what they are split from

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        for lines in self._lines(block, on_bad):
            if lines.text is None:
                yield ValueChunk([word for line in lines.good for word in line.split()], "word")
            else:
                yield _words(lines.text)


def _words(text: str) -> Chunk:
    if not text.isascii():
        return ValueChunk(text.split(), "word")
    spaced = text.replace("\n", " ")
    codes = np.frombuffer(spaced.encode("ascii"), np.uint8)
    ends = codes == _SPACE
    if _has_empty(ends) or codes.min() < _SPACE:
        return SplitChunk(text, None, _count_words(text), "word")
    n_words = int(np.count_nonzero(ends)) + (not ends[-1])
    return SplitChunk(spaced, " ", n_words, "word")  # which is split faster than by any white space


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
