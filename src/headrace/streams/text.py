"""Windows of text: they are sent whole, and become batches of strings where these are given out.

Strings are made and freed again in less time than it takes to send them; and the fewer of them are there at a time, the
more likely they are in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headrace.sources.chunks import JoinedChunk, ObjectChunk, TextChunk, split_text
from headrace.sources.source import Chunk
from headrace.streams.messages import CutBatches, SendRows


class Text(NamedTuple):
    """The rows of a window, as the texts that they are to be split from."""

    chunks: list[TextChunk]

    def answer(self, request: CutBatches | SendRows, first: int = 0) -> TextBatches | ObjectChunk:
        """What a worker would make of its rows, the first of which is number `first` of the window."""
        parts: Any = JoinedChunk(self.chunks).spans(request.start - first, request.stop - first)
        texts = [(chunk.text(start, stop), chunk.separator) for chunk, start, stop in parts]
        if isinstance(request, CutBatches):
            return TextBatches(texts, request.size)
        return ObjectChunk([row for text in texts for row in split_text(*text)])

    def without(self, n: int) -> Text:
        """The same without the first n rows."""
        parts: Any = JoinedChunk(self.chunks).spans(n, sum(map(len, self.chunks)))
        return Text([chunk.cut(start, stop) for chunk, start, stop in parts])


def text_of(chunks: Sequence[Chunk]) -> Text | None:
    """The text of these rows; None if they are not, or not only, to be split from one."""
    of_text = [chunk for chunk in chunks if isinstance(chunk, TextChunk)]
    return Text(of_text) if chunks and len(of_text) == len(chunks) else None


class TextBatches:
    """Batches of strings, which are split as they are taken.

    Guarantees: in the order of the texts; as many as there are rows for.

    Args:
        texts: and their separators; see `split_text`.
    """

    def __init__(self, texts: list[tuple[str, str | None]], size: int) -> None:
        self._texts = texts
        self._size = size

    def __iter__(self) -> Iterator[list[str]]:
        size = self._size
        begun: list[str] = []
        for text, separator in self._texts:
            rows = split_text(text, separator)
            start = size - len(begun) if begun else 0
            if begun:
                begun += rows[:start]
                if len(begun) < size:
                    continue
                yield begun
            stop = len(rows) - (len(rows) - start) % size
            for place in range(start, stop, size):
                yield rows[place : place + size]
            begun = rows[stop:]
