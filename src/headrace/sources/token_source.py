"""Rows of tokens of files as blocks that can be read alone, and by their numbers."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from headrace.base.errors import RecordError, check_count
from headrace.base.indices import Indices
from headrace.base.world import keep_freed_memory
from headrace.sources.chunks import ColumnChunk, ObjectChunk
from headrace.sources.files import Paths, check_unchanged, is_local
from headrace.sources.options import FileOptions
from headrace.sources.source import Block, Chunk, FileVersion, OnBad
from headrace.sources.token_files import TokenFile, Tokens, list_tokens, open_tokens, parse_split, part_of
from headrace.sources.token_rows import RowLayout, Run, TokenRows, columns_of

_BLOCK_BYTES = 8 << 20
_CHUNK_BYTES = 2 << 20
_MOST_BLOCKS = 1 << 16  # of all files; of more tokens, blocks are larger
_THREADS = 16
_PARTS = ("train", "valid", "test")


class TokenCut(NamedTuple):
    """How rows are cut from tokens.

    Attributes:
        layout: of a row; None if rows are documents.
        dtype: of raw tokens in files; None for what the files say.
        stride: how many tokens further the next row begins.
        split: where the part of each file that is read begins and ends, as fractions.
    """

    layout: RowLayout | None
    dtype: np.dtype[Any] | None
    row_dtype: np.dtype[Any]
    stride: int
    split: tuple[float, float] = (0.0, 1.0)


class _Part(NamedTuple):
    """What is read of a file: the tokens [start, stop), or its documents, as `n_rows` rows after `before` others.

    Attributes:
        first_document: of the part, where rows are documents.
        damage: what is wrong with the file, if it cannot be read.
    """

    tokens: TokenFile
    start: int
    stop: int
    n_rows: int
    before: int
    first_document: int = 0
    damage: RecordError | None = None


class _Listing(NamedTuple):
    parts: dict[str, _Part]
    versions: list[FileVersion]


class TokenSource:
    """Rows of tokens: of one length, or whole documents.

    Rows never span two files; what is left at the end of a file and does not fill a row is dropped. Local files are
    mapped into memory, and files in stores are read by ranges.

    Raises:
        MissingExtraError: a path is a URL, and fsspec is not installed.
    """

    is_plain = True
    tells_rows = True
    keeps_lazy = True  # its columns take no memory before rows of them are wanted

    def __init__(self, paths: Paths, cut: TokenCut, options: FileOptions | None = None) -> None:
        self._paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._cut = cut
        self._options = options or FileOptions()
        self._is_lenient = False
        self._known: _Listing | None = None
        self._blocks: tuple[Block, ...] | None = None
        self._mapped: dict[str, Tokens] = {}

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order; looks into each file once.

        Raises:
            RecordError: a file is damaged, or no file of tokens.
        """
        if self._blocks is None:
            self._blocks = tuple(self._cut_blocks(list(self._listing.parts.values())))
        return self._blocks

    def versions(self) -> list[FileVersion]:
        return self._listing.versions

    @property
    def signature(self) -> dict[str, Any]:
        """What a state must agree with: how rows are cut."""
        cut, layout = self._cut, self._cut.layout
        return {"rows of tokens": [layout and layout.length, layout and layout.targets, cut.stride, *cut.split]}

    @property
    def n_rows(self) -> int:
        """How many rows all files have together."""
        return sum(part.n_rows for part in self._listing.parts.values())

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on, in chunks of at most a few megabytes.

        Raises:
            RecordError: the file is damaged.
            ChangedFileError: the file is not the one that was listed.
        """
        part = self._listing.parts[block.path]
        if part.damage is not None:
            raise part.damage
        check_unchanged(part.tokens.file)
        yield from (self._documents if self._cut.layout is None else self._rows)(part, block, first_row)
        check_unchanged(part.tokens.file)

    def take(self, rows: Indices) -> TokenRows:
        """Rows by their numbers, over all files.

        Raises:
            IndexError: there is no such row.
        """
        layout, listing = self._cut.layout, self._listing
        assert layout is not None
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < self.n_rows):
            raise IndexError(f"Rows must be at least 0 and less than {self.n_rows:,}, got {rows.tolist()!r:.80}.")
        parts = list(listing.parts.values())
        if len(parts) == 1 and is_local(parts[0].tokens.path):
            return TokenRows(layout, [self._run(parts[0])], parts[0].start + rows * self._cut.stride)
        befores = np.array([part.before + part.n_rows for part in parts])
        which = np.searchsorted(befores, rows, side="right")
        picked = []
        for number, row in zip(which.tolist(), rows.tolist(), strict=True):
            start = parts[number].start + (row - parts[number].before) * self._cut.stride
            picked.append(TokenRows(layout, [self._run(parts[number], start, start + layout.span)], np.array([start])))
        return TokenRows.joined(picked) if picked else TokenRows(layout, [self._run(parts[0])], rows)

    def describe(self) -> dict[str, Any]:
        listing, layout = self._listing, self._cut.layout
        parts = [part for part in listing.parts.values() if part.damage is None]
        indexes = [part.tokens.documents for part in parts if part.tokens.documents is not None]
        names = ("tokens",) if layout is None else layout.columns
        length = "" if layout is None else f" of length {layout.length}"
        return {
            "format": "tokens",
            "files": len(listing.versions),
            "bytes": sum(file.size or 0 for file in listing.versions),
            "blocks": len(self.blocks()),
            "rows": self.n_rows,
            "columns": {
                name: f"{self._cut.row_dtype if layout is None else layout.dtype_of(name)}{length}" for name in names
            },
            "tokens": sum(part.stop - part.start for part in parts),
            "stored_as": sorted({np.dtype(part.tokens.dtype).name for part in parts}),
            "documents": sum(index.n_documents for index in indexes) if indexes else None,
        }

    def lenient(self) -> TokenSource:
        """The same source, but a damaged file raises only when it is read: it becomes one unreadable block."""
        source = copy.copy(self)
        source._is_lenient, source._known, source._blocks, source._mapped = True, None, None, {}
        return source

    def _rows(self, part: _Part, block: Block, first_row: int) -> Iterator[ColumnChunk]:
        layout, stride = self._cut.layout, self._cut.stride
        assert layout is not None
        at_once = max(1, _CHUNK_BYTES // (stride * np.dtype(part.tokens.dtype).itemsize))
        for first in range(block.start + first_row, block.stop, at_once):
            starts = part.start + np.arange(first, min(first + at_once, block.stop), dtype=np.int64) * stride
            run = self._run(part, int(starts[0]), int(starts[-1]) + layout.span)
            yield ColumnChunk(columns_of(TokenRows(layout, [run], starts)), len(starts))

    def _documents(self, part: _Part, block: Block, first_row: int) -> Iterator[ObjectChunk]:
        index = part.tokens.documents
        assert index is not None
        borders = index.borders[part.first_document + block.start + first_row : part.first_document + block.stop + 1]
        size = np.dtype(part.tokens.dtype).itemsize
        first = 0
        while first < len(borders) - 1:
            most = int(borders[first]) + _CHUNK_BYTES // size
            last = max(first + 1, int(np.searchsorted(borders, most, side="right")) - 1)
            start, stop = int(borders[first]), int(borders[last])
            tokens = self._run(part, start, stop)
            whole = tokens.tokens[start - tokens.first : stop - tokens.first].astype(self._cut.row_dtype)
            cuts = (borders[first : last + 1] - start).tolist()
            yield ObjectChunk([whole[a:b] for a, b in itertools.pairwise(cuts)])
            first = last

    def _run(self, part: _Part, start: int = 0, stop: int = 0) -> Run:
        """The tokens of a file: all, if it is local, or a range."""
        tokens, layout = part.tokens, self._cut.layout
        is_marked = layout is not None and layout.documents and tokens.documents is not None
        borders = tokens.documents.borders if is_marked and tokens.documents is not None else None
        if not is_local(tokens.path):
            return Run(tokens.fetch(start, stop, self._options), start, borders)
        if tokens.path not in self._mapped:
            self._mapped[tokens.path] = tokens.map()
        return Run(self._mapped[tokens.path], 0, borders)

    @property
    def _listing(self) -> _Listing:
        if self._known is None:
            self._known = self._list()
        return self._known

    def _list(self) -> _Listing:
        keep_freed_memory()
        found = list_tokens(self._paths, self._options)
        with ThreadPoolExecutor(min(_THREADS, len(found))) as threads:  # it mostly waits
            opened = list(threads.map(lambda pair: self._look(*pair), found))
        if all(isinstance(one, RecordError) for one in opened) and isinstance(opened[0], RecordError):
            raise opened[0]
        parts: dict[str, _Part] = {}
        before = 0
        for (file, _), tokens in zip(found, opened, strict=True):
            if isinstance(tokens, RecordError):
                parts[file.path] = _Part(TokenFile(file, "<u2", 0, 0), 0, 0, 0, before, damage=tokens)
                continue
            parts[file.path] = self._part(tokens, before)
            before += parts[file.path].n_rows
        versions = [file for pair in found for file in pair if file is not None]
        return _Listing(parts, versions)

    def _look(self, file: FileVersion, index: FileVersion | None) -> TokenFile | RecordError:
        try:
            tokens = open_tokens(file, index, self._cut.dtype, self._options)
            self._check(tokens)
        except RecordError as error:
            if not self._is_lenient:
                raise
            return error
        return tokens

    def _check(self, tokens: TokenFile) -> None:
        layout = self._cut.layout
        if tokens.documents is None and (layout is None or (layout.documents and layout.end is None)):
            raise ValueError(
                f"Where documents begin must be known, and {tokens.path} has no index (.idx) beside it. "
                + ("Pass a length." if layout is None else "Pass end=, the token that ends a document.")
            )

    def _part(self, tokens: TokenFile, before: int) -> _Part:
        start, stop = part_of(tokens, self._cut.split)
        if self._cut.layout is not None:
            n_rows = max(0, (stop - start - self._cut.layout.span) // self._cut.stride + 1)
            return _Part(tokens, start, stop, n_rows, before)
        assert tokens.documents is not None
        first, last = (round(border * float(tokens.documents.n_documents)) for border in self._cut.split)
        return _Part(tokens, start, stop, last - first, before, first)

    def _cut_blocks(self, parts: Sequence[_Part]) -> Iterator[Block]:
        n_bytes = sum((part.stop - part.start) * np.dtype(part.tokens.dtype).itemsize for part in parts)
        block_bytes = self._options.block_bytes or max(_BLOCK_BYTES, n_bytes // _MOST_BLOCKS)
        for part in parts:
            if part.damage is not None:
                yield Block(part.tokens.path, 0, 0, None, part.tokens.file.size or 0)
                continue
            at_once = max(1, block_bytes // np.dtype(part.tokens.dtype).itemsize)
            path, row_bytes = part.tokens.path, self._row_bytes(part)
            for first, last in self._cut_part(part, at_once):
                yield Block(path, first, last, last - first, int((last - first) * row_bytes))

    def _row_bytes(self, part: _Part) -> float:
        """How much memory a row takes, on average, when it is read."""
        layout = self._cut.layout
        if layout is None:
            return (part.stop - part.start) / max(1, part.n_rows) * self._cut.row_dtype.itemsize
        return layout.length * sum(layout.dtype_of(name).itemsize for name in layout.columns)

    def _cut_part(self, part: _Part, at_once: int) -> Iterator[tuple[int, int]]:
        """The rows of the blocks of a file, about so many tokens in each."""
        if self._cut.layout is not None or part.tokens.documents is None:
            step = max(1, at_once // self._cut.stride)
            yield from ((first, min(first + step, part.n_rows)) for first in range(0, part.n_rows, step))
            return
        borders = part.tokens.documents.borders[part.first_document : part.first_document + part.n_rows + 1]
        first = 0
        while first < part.n_rows:
            last = int(np.searchsorted(borders, int(borders[first]) + at_once, side="right")) - 1
            last = min(max(last, first + 1), part.n_rows)
            yield first, last
            first = last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_blocks": None, "_mapped": {}}  # of which there may be many, and workers need none


def make_cut(
    length: int | None,
    *,
    dtype: Any = None,
    targets: bool = True,
    stride: int | None = None,
    documents: bool = False,
    end: int | None = None,
    ignore_index: int = -100,
    split: str | Sequence[float] | None = None,
    part: int | str = 0,
    row_dtype: Any = "int64",
) -> TokenCut:
    """How rows are cut, of the arguments of `read_tokens`.

    Raises:
        TypeError: a dtype is none of integers.
        ValueError: `length` or `stride` is not positive, or there is no such part of a split.
    """
    stored = None if dtype is None else _integers("dtype", dtype)
    given = _integers("row_dtype", row_dtype)
    layout = None
    if length is not None:
        check_count("length", length, 1)
        layout = RowLayout(length, given, targets, documents or end is not None, end, ignore_index)
        if layout.documents and targets and not _fits(ignore_index, given):
            raise ValueError(f"ignore_index={ignore_index} does not fit {given}, the type of tokens in a row.")
    if stride is not None:
        check_count("stride", stride, 1)
    borders = (0.0, 1.0)
    if split is not None:
        all_borders = parse_split(split)
        number = _PARTS.index(part) if part in _PARTS else part
        if not isinstance(number, int) or not 0 <= number < len(all_borders) - 1:
            raise ValueError(
                f"part must be the number of one of the {len(all_borders) - 1} parts of the split, or 'train', 'valid' "
                f"or 'test', got {part!r}."
            )
        borders = (all_borders[number], all_borders[number + 1])
    return TokenCut(layout, stored, given, stride or length or 1, borders)


def _integers(name: str, dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(dtype)
    if found.kind not in "iu":
        raise TypeError(f"{name} must be a type of integers, such as 'uint16', got {found}.")
    return found


def _fits(number: int, dtype: np.dtype[Any]) -> bool:
    return bool(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max)
