"""Batches that the loop itself makes, each when it is taken: of text that is still to be split, and of columns.

Strings are made and freed again in less time than it takes to send them; and the fewer of them are there at a time, the
more likely they are in the processor's cache. Columns are sent as they were read, which takes no time for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.base.lazy_column import Columns
from headrace.sources.chunks import ColumnChunk, JoinedChunk, ObjectChunk, TextChunk, split_text
from headrace.sources.source import Chunk
from headrace.streams.messages import CutBatches, SendRows
from headrace.streams.rows import own_columns


class WindowText:
    """Rows of a window that are here as text, and are asked for in ascending order."""

    def __init__(self) -> None:
        self._chunks: list[TextChunk] = []
        self._first = 0  # row of the window

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, chunks: list[TextChunk], start: int, n_known: int) -> None:
        """Rows from number `start` on, of which those before `n_known` are known already."""
        if start < n_known:
            spans: Any = JoinedChunk(chunks).spans(n_known - start, sum(map(len, chunks)))
            chunks = [chunk.cut(first, last) for chunk, first, last in spans]
        if not self._chunks:
            self._first = max(start, n_known)
        self._chunks += chunks

    def answer(self, request: CutBatches | SendRows) -> TextBatches | ObjectChunk:
        """What a worker would make of the rows."""
        spans: Any = JoinedChunk(self._chunks).spans(request.start - self._first, request.stop - self._first)
        texts = [(chunk.text(start, stop), chunk.separator) for chunk, start, stop in spans]
        if isinstance(request, CutBatches):
            return TextBatches(texts, request.size)
        return ObjectChunk([row for text in texts for row in split_text(*text)])

    def forget(self, stop: int) -> None:
        """The rows before number `stop` have been asked for."""
        while self._chunks and self._first + len(self._chunks[0]) <= stop:
            self._first += len(self._chunks.pop(0))


def text_of(chunks: Sequence[Chunk]) -> list[TextChunk] | None:
    """Chunks that are still text; None if they are not all."""
    of_text = [chunk for chunk in chunks if isinstance(chunk, TextChunk)]
    return of_text if chunks and len(of_text) == len(chunks) else None


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


class ColumnParts(Columns):
    """Columns of many rows, in parts as they were read. To send them takes no time for each batch.

    Args:
        parts: columns, some of which may not be made yet, and their number of rows.
        is_own: whether nobody else sees the arrays: they were sent here.
    """

    def __init__(self, parts: list[tuple[dict[str, Any], int]], *, is_own: bool = False) -> None:
        self.parts = parts
        self._is_own = is_own

    def __reduce__(self) -> Any:
        return _unpickle, (self.parts,)

    def packed(self, pack: Callable[[Any], Any]) -> ColumnParts:
        parts = [({name: pack(column) for name, column in part.items()}, n_rows) for part, n_rows in self.parts]
        return ColumnParts(parts, is_own=self._is_own)

    def cut(self, columns: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
        """Some rows of a part, which nobody else sees."""
        rows = slice(start, stop)
        return own_columns({name: column[rows] for name, column in columns.items()}, is_own=self._is_own)


def _unpickle(parts: list[tuple[dict[str, Any], int]]) -> ColumnParts:
    return ColumnParts(parts, is_own=True)


class ColumnCutter:
    """Makes batches of columns, each when it is taken: the memory of the one before is used again, while in the cache.

    Guarantees: in the order of the rows; nobody else sees the arrays of a batch.

    Args:
        size: rows in a batch.
        finish: makes a batch of its columns.
    """

    def __init__(self, size: int, finish: Callable[[dict[str, Any]], Any]) -> None:
        self._size = size
        self._finish = finish
        self._begun: list[dict[str, Any]] = []  # of a batch that goes on in the next part
        self._missing = 0

    def batches(self, columns: ColumnParts) -> Iterator[Any]:
        """All whole batches of what is left over of the columns before, and these; to be gone through to the end."""
        for part, n_rows in columns.parts:
            first = min(self._missing, n_rows)
            if first:
                self._begun.append(columns.cut(part, 0, first))
                self._missing -= first
                if self._missing:
                    continue
                yield self.rest()
            last = n_rows - (n_rows - first) % self._size
            for start in range(first, last, self._size):
                yield self._finish(columns.cut(part, start, start + self._size))
            if last < n_rows:
                self._begun, self._missing = [columns.cut(part, last, n_rows)], self._size - (n_rows - last)

    def rest(self) -> Any:
        """A batch of what is left over."""
        begun, self._begun, self._missing = self._begun, [], 0
        return self._finish(ColumnChunk.joined(begun).columns())
