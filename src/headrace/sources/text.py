"""Text files: each line a row, or each word, or each file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from headrace.sources.chunks import ValueChunk
from headrace.sources.file_source import FileSource, bad_record
from headrace.sources.line_source import LineSource
from headrace.sources.source import Block, Chunk, FileVersion, OnBad, leave_out


@final
class TextSource(LineSource):
    """The lines of text files, as strings without their newlines; as a column, `text`."""

    format = "text"

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        for lines in self._lines(block, on_bad):
            yield ValueChunk(lines.texts, "text")


@final
class WordSource(LineSource):
    """The words of text files: whatever stands between white space; as a column, `word`."""

    format = "text, words"

    def _read(self, block: Block, on_bad: OnBad | None) -> Iterator[Chunk]:
        for lines in self._lines(block, on_bad):
            yield ValueChunk("\n".join(lines.texts).split(), "word")


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
