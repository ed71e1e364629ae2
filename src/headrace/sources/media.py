"""Folders of images and sounds: a listing that is kept, and files decoded in threads."""

from __future__ import annotations

import csv
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, final

from headrace.base.errors import MissingExtraError, RecordError
from headrace.base.world import keep_freed_memory
from headrace.sources.chunks import RecordChunk, skip_rows
from headrace.sources.files import open_range
from headrace.sources.options import FileOptions
from headrace.sources.source import BadRecord, Block, Chunk, FileVersion, OnBad, skip_bad

Row: TypeAlias = "Mapping[str, Any] | BadRecord"
Decode: TypeAlias = Callable[[bytes, str], Mapping[str, Any]]
"""Makes the columns of a row of the content and the path of a file."""

_BLOCK_BYTES = 8 << 20
_MOST_BLOCK_ROWS = 256
_CHUNK_ROWS = 32
_RAW_BYTES = 4096  # of a bad file, to show
_LISTING_VERSION = 1


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file, and what is known of it before it is read."""

    path: str
    size: int
    label: Any = None


def list_folder(root: str, suffixes: Sequence[str], listing: str | None = None) -> tuple[list[MediaFile], list[str]]:
    """The files below a folder, each labelled by the number of its first folder; and these folders.

    Folders, and the files of each, are in the order of their names, so that labels are those of torchvision.

    Args:
        listing: a file to keep the listing in. Only folders that have changed since, by their time, are read again.

    Raises:
        FileNotFoundError: there is no such folder, or no file in it.
    """
    if not os.path.isdir(root):
        raise FileNotFoundError(f"{root!r} must be a folder, but is none.")
    known = {} if listing is None else _load_listing(listing, suffixes)
    seen: dict[str, Any] = {}
    _scan(root, "", tuple(suffixes), known, seen)
    if listing is not None and seen != known:
        _save_listing(listing, suffixes, seen)
    found = {f"{folder}/{name}" if folder else name: size for folder, entry in seen.items() for name, size in entry[1]}
    names = sorted(found, key=os.path.split)
    classes = sorted({name.partition("/")[0] for name in names if "/" in name})
    numbers = {name: number for number, name in enumerate(classes)}
    files = [MediaFile(os.path.join(root, name), found[name], numbers.get(name.partition("/")[0])) for name in names]
    if not files:
        raise FileNotFoundError(f"{root!r} must have files that end with {', '.join(suffixes)}, but has none.")
    return files, classes


def _scan(root: str, folder: str, suffixes: tuple[str, ...], known: dict[str, Any], seen: dict[str, Any]) -> None:
    place = os.path.join(root, folder) if folder else root
    changed = str(os.stat(place).st_mtime_ns)
    entry = known.get(folder)
    if entry is None or entry[0] != changed:
        files, folders = [], []
        with os.scandir(place) as entries:
            for each in entries:
                if each.name.startswith((".", "_")):
                    continue
                if each.is_dir():
                    folders.append(each.name)
                elif each.name.lower().endswith(suffixes):
                    files.append([each.name, each.stat().st_size])
        entry = [changed, sorted(files), sorted(folders)]
    seen[folder] = entry
    for name in entry[2]:
        _scan(root, f"{folder}/{name}" if folder else name, suffixes, known, seen)


def _load_listing(path: str, suffixes: Sequence[str]) -> dict[str, Any]:
    try:
        kept = json.loads(Path(path).read_text())
        if kept["version"] == _LISTING_VERSION and kept["suffixes"] == list(suffixes):
            return dict(kept["folders"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # there is none yet, or it is damaged: all is read again
    return {}


def _save_listing(path: str, suffixes: Sequence[str], folders: dict[str, Any]) -> None:
    part = f"{path}.{os.getpid()}"
    Path(part).write_text(json.dumps({"version": _LISTING_VERSION, "suffixes": list(suffixes), "folders": folders}))
    os.replace(part, path)


def list_table(root: str, table: str, path_column: str, label_column: str | None) -> list[MediaFile]:
    """The files that a CSV or JSON lines file names, relative to `root`, in its order.

    Raises:
        ValueError: a column is missing; names it.
        FileNotFoundError: some files are missing; names the first ones.
    """
    with open(table, encoding="utf-8", newline="") as opened:
        is_json = table.endswith((".jsonl", ".ndjson"))
        rows = [json.loads(line) for line in opened if line.strip()] if is_json else list(csv.DictReader(opened))
    wanted = [path_column, *([] if label_column is None else [label_column])]
    if missing := [name for name in wanted if any(name not in row for row in rows)]:
        raise ValueError(f"{table!r} must have the columns {missing}, but has {list(rows[0]) if rows else 'no rows'}.")
    paths = [os.path.join(root, row[path_column]) for row in rows]
    if absent := [path for path in paths if not os.path.isfile(path)]:
        raise FileNotFoundError(f"{table!r} names {len(absent)} files that are missing: {absent[:3]}.")
    labels = [None if label_column is None else row[label_column] for row in rows]
    return [MediaFile(path, os.path.getsize(path), label) for path, label in zip(paths, labels, strict=True)]


@final
class MediaSource:
    """Rows of files: what a decoder makes of each, its label and its path.

    Blocks are consecutive files of about `block_bytes` together.

    Args:
        files: in the order in which they are to come.
        classes: the names of the labels, if these are numbers.
        decode: what is called for each file, in `threads` at a time.
    """

    tells_rows = True

    def __init__(
        self,
        kind: str,
        files: Sequence[MediaFile],
        classes: Sequence[str],
        decode: Decode,
        threads: int = 1,
        options: FileOptions | None = None,
    ) -> None:
        self.format = kind
        self.classes = list(classes)
        self._files = list(files)
        self._decode = decode
        self._threads = threads
        self._options = options or FileOptions()
        self._blocks: tuple[Block, ...] | None = None

    def versions(self) -> list[FileVersion]:
        return [FileVersion(file.path, file.size, None) for file in self._files]

    def blocks(self) -> Sequence[Block]:
        if self._blocks is None:
            keep_freed_memory()
            block_bytes = self._options.block_bytes or _BLOCK_BYTES
            borders, n_bytes = [0], 0
            for i, file in enumerate(self._files):
                if i > borders[-1] and (n_bytes + file.size > block_bytes or i - borders[-1] >= _MOST_BLOCK_ROWS):
                    borders.append(i)
                    n_bytes = 0
                n_bytes += file.size
            borders = [*borders, len(self._files)] if self._files else borders
            self._blocks = tuple(
                Block(self._files[a].path, a, b, b - a, sum(file.size for file in self._files[a:b]))
                for a, b in pairwise(borders)
            )
        return self._blocks

    def describe(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "files": len(self._files),
            "bytes": sum(file.size for file in self._files),
            "blocks": len(self.blocks()),
            "rows": len(self._files),
            "classes": self.classes,
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The rows of a block from `first_row` on.

        Raises:
            RecordError: a file cannot be decoded, and `on_bad` is None; names it.
        """
        # Which files are bad shows only when they are decoded. If none may be, those before are skipped unseen.
        unseen, seen = (first_row, 0) if on_bad is None else (0, first_row)
        return skip_rows(self._chunks(block.start + unseen, block.stop, on_bad), seen)

    def _chunks(self, start: int, stop: int, on_bad: OnBad | None) -> Iterator[Chunk]:
        keep_freed_memory()
        if self._threads == 1:
            yield from self._gather(map(self._try, self._files[start:stop]), on_bad)
            return
        with ThreadPoolExecutor(self._threads, "headrace-decode") as threads:
            yield from self._gather(self._ahead(threads, self._files[start:stop]), on_bad)

    def _ahead(self, threads: ThreadPoolExecutor, files: Sequence[MediaFile]) -> Iterator[Row]:
        """The rows of files, in order; a few are decoded ahead."""
        waiting: deque[Future[Row]] = deque()
        try:
            for file in files:
                waiting.append(threads.submit(self._try, file))
                if len(waiting) > 2 * self._threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()

    def _gather(self, found: Iterator[Row], on_bad: OnBad | None) -> Iterator[Chunk]:
        rows: list[Mapping[str, Any]] = []
        for row in found:
            if isinstance(row, BadRecord):
                skip_bad(row, on_bad)
                continue
            rows.append(row)
            if len(rows) == _CHUNK_ROWS:
                yield RecordChunk(rows)
                rows = []
        if rows:
            yield RecordChunk(rows)

    def row(self, i: int) -> Mapping[str, Any]:
        """The row of one file.

        Raises:
            RecordError: it cannot be decoded; names it.
        """
        row = self._try(self._files[i])
        if isinstance(row, BadRecord):
            raise RecordError(str(row))
        return row

    def _try(self, file: MediaFile) -> Row:
        content = b""
        try:
            with open_range(FileVersion(file.path, file.size, None), 0, None, self._options) as opened:
                content = opened.read()
            row = dict(self._decode(content, file.path))
        except MissingExtraError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever a decoder raises, the file is bad)
            return BadRecord(file.path, content[:_RAW_BYTES], f"{type(error).__name__}: {error}")
        row["path"] = file.path
        return row if file.label is None else {**row, "label": file.label}


def make_source(
    kind: str,
    root: str | os.PathLike[str],
    suffixes: Sequence[str],
    decode: Decode,
    *,
    table: str | os.PathLike[str] | None,
    columns: tuple[str, str | None],
    listing: str | os.PathLike[str] | None,
    threads: int,
    options: FileOptions,
) -> MediaSource:
    """A source of the files of a folder, or of those that a table names."""
    folder = os.fspath(root)
    if table is not None:
        return MediaSource(kind, list_table(folder, os.fspath(table), *columns), [], decode, threads, options)
    files, classes = list_folder(folder, suffixes, None if listing is None else os.fspath(listing))
    return MediaSource(kind, files, classes, decode, threads, options)
