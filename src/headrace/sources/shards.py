"""Shards with a table of offsets, as MosaicML Streaming and LitData write them: an index, and files of records.

A file is a uint32 count, as many uint32 offsets and one more, and the records. A record is the sizes of its fields, as
uint32, and their values.
"""

from __future__ import annotations

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.base.errors import MissingExtraError, RecordError
from headrace.base.world import keep_freed_memory
from headrace.sources.chunks import ColumnChunk, skip_rows
from headrace.sources.compression import decompress
from headrace.sources.files import Paths, check_unchanged, list_files, open_range, path_below
from headrace.sources.options import FileOptions
from headrace.sources.source import BadRecord, Block, Chunk, FileVersion, OnBad, skip_bad

Decoder: TypeAlias = Callable[[bytes], Any]
Decoders: TypeAlias = "bool | Mapping[str, Decoder | None]"
Places: TypeAlias = npt.NDArray[np.int64]

BLOCK_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_RAW_BYTES = 4096  # of a bad record, to show
_FEW_BYTES = 16  # of a number, or a short array, which is gathered by its places
_INDEX = "index.json"
OFFSET = np.dtype("<u4")


@dataclass(frozen=True)
class Field:
    """A field of all records of a shard.

    Attributes:
        n_bytes: the size of its values, if records do not say it.
        dtype: if its values are numbers, or arrays of them of one shape.
        decode: makes a value of its bytes, if they are something else; None leaves the bytes.
    """

    name: str
    n_bytes: int | None = None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    decode: Decoder | None = None


class Shard(NamedTuple):
    """A file of records.

    Attributes:
        n_bytes: of its content, decompressed.
        codec: how it is compressed as a whole, if it is.
        fields: of its records, in order.
        has_sizes: whether records begin with the sizes of their fields; else they are one value each.
        detail: what else the index says of records.
    """

    file: FileVersion
    n_rows: int
    n_bytes: int
    codec: str | None
    fields: tuple[Field, ...]
    has_sizes: bool = True
    detail: str | None = None


class _Values(NamedTuple):
    """Where the values of a field are in some content."""

    begins: Places
    sizes: Places


class ShardSource(ABC):
    """Records of folders that have an index and shards.

    Blocks are about `block_bytes` of a shard, found by the index alone; a compressed shard is one block.

    Guarantees: nothing is unpickled unless `decode` says so; offsets are checked before they are used.

    Args:
        folders: each with an index, in the order in which they are to be read.
        decode: True decodes fields by their encoding, False leaves them as bytes. A dict adds or replaces decoders, by
            the name of a field or of an encoding; None leaves a field as bytes.
        columns: the fields to read, in this order; all if None.
    """

    format: str
    tells_rows = True

    def __init__(
        self,
        folders: Paths,
        *,
        decode: Decoders = True,
        columns: Sequence[str] | None = None,
        options: FileOptions | None = None,
    ) -> None:
        if isinstance(columns, str):
            raise TypeError(f"`columns` must be a list of names, got {columns!r}: pass [{columns!r}].")
        given = [folders] if isinstance(folders, (str, os.PathLike)) else list(folders)
        self._folders = [os.fspath(folder).rstrip("/").removesuffix(f"/{_INDEX}") for folder in given]
        self._decode = decode
        self._columns = None if columns is None else tuple(columns)
        self._options = options or FileOptions()
        self._block_bytes = self._options.block_bytes or BLOCK_BYTES
        self._known: dict[str, Shard] | None = None
        self._blocks: tuple[Block, ...] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether reading runs only our code and that of known libraries."""
        return not isinstance(self._decode, Mapping)

    def versions(self) -> list[FileVersion]:
        return [shard.file for shard in self._shards.values()]

    def blocks(self) -> Sequence[Block]:
        """All blocks, in order; reads the indexes only.

        Raises:
            FileNotFoundError: there is no index, or a shard that it names is missing.
            RecordError: an index is damaged, or of another format.
        """
        if self._blocks is None:
            keep_freed_memory()  # here, too: this process gets the rows that workers read
            self._blocks = tuple(block for shard in self._shards.values() for block in self._cut(shard))
        return self._blocks

    def describe(self) -> dict[str, Any]:
        shards = list(self._shards.values())
        sizes = [shard.file.size for shard in shards]
        return {
            "format": self.format,
            "files": len(shards),
            "bytes": None if None in sizes else sum(filter(None, sizes)),
            "blocks": len(self.blocks()),
            "rows": sum(shard.n_rows for shard in shards),
            "compression": sorted({shard.codec for shard in shards if shard.codec}),
        }

    def read(self, block: Block, first_row: int = 0, on_bad: OnBad | None = None) -> Iterator[Chunk]:
        """The records of a block from `first_row` on.

        Raises:
            RecordError: a record cannot be decoded, and `on_bad` is None; or the shard is damaged.
        """
        # Which records are bad shows only when they are decoded. If none may be, those before are skipped unseen.
        unseen, seen = (first_row, 0) if on_bad is None else (0, first_row)
        yield from skip_rows(self._chunks(block, unseen, on_bad), seen)
        check_unchanged(self._shards[block.path].file)

    @abstractmethod
    def _find_shards(self, folder: str, index: Any, files: Mapping[str, FileVersion]) -> Iterator[Shard]:
        """The shards that an index names.

        Args:
            files: of the folder, by their names in it.

        Raises:
            KeyError, TypeError, ValueError: something of the index is missing, or not what it should be.
        """

    def _as_chunk(self, shard: Shard, columns: dict[str, Any], n_rows: int) -> Chunk:
        return ColumnChunk(columns, n_rows)

    def _open(self, shard: Shard) -> BinaryIO:
        """A shard's content, which can seek."""
        opened = open_range(shard.file, 0, 0 if shard.codec is None else None, self._options)
        if shard.codec is None:
            return opened
        with decompress(opened, shard.codec, shard.file.path) as content:
            return io.BytesIO(content.read(shard.n_bytes + 1))  # a little more, to notice one that is too long

    def _chunks(self, block: Block, first: int, on_bad: OnBad | None) -> Iterator[Chunk]:
        keep_freed_memory()
        shard, start = self._shards[block.path], block.start + first
        if start >= block.stop:
            return
        with self._open(shard) as file:
            offsets = read_offsets(shard, file, start, block.stop)
            for low, high in _cut_records(offsets):
                content = _read_exactly(shard, file, int(offsets[low]), int(offsets[high]))
                records = _Records(shard, content, offsets[low : high + 1] - offsets[low], start + low)
                columns, n_rows = records.decode(self._wanted(shard), on_bad)
                yield self._as_chunk(shard, columns, n_rows)

    def _wanted(self, shard: Shard) -> Sequence[int]:
        """The numbers of the fields to read.

        Raises:
            ValueError: there is no such field.
        """
        names = [field.name for field in shard.fields]
        if self._columns is None:
            return range(len(names))
        if missing := [name for name in self._columns if name not in names]:
            raise ValueError(f"`columns` must be fields of {shard.file.path!r}, {names}, got {missing}.")
        return [names.index(name) for name in self._columns]

    @property
    def _shards(self) -> dict[str, Shard]:
        if self._known is None:
            found = (shard for folder in self._folders for shard in self._list(folder))
            self._known = {shard.file.path: shard for shard in found if shard.n_rows}
            for shard in self._known.values():
                self._wanted(shard)
        return self._known

    def _list(self, folder: str) -> list[Shard]:
        files = {path_below(file.path, folder): file for file in list_files(folder, self._options)}
        if _INDEX not in files:
            below = sorted(name.removesuffix(f"/{_INDEX}") for name in files if name.endswith(f"/{_INDEX}"))
            hint = f" Pass one of its folders that has one, or several: {below[:10]}." if below else ""
            raise FileNotFoundError(f"{folder!r} must have an {_INDEX!r}, as {self.format} writes it.{hint}")
        with open_range(files[_INDEX], 0, None, self._options) as opened:
            content = opened.read()
        try:
            return list(self._find_shards(folder, json.loads(content), files))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, RecordError):
                raise
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise RecordError(f"{folder}/{_INDEX} is damaged, or no index of {self.format}: {problem}.") from error

    def _cut(self, shard: Shard) -> list[Block]:
        path, n = shard.file.path, shard.n_rows
        n_blocks = 1 if shard.codec else max(1, min(n, round(shard.n_bytes / self._block_bytes)))
        borders = [n * i // n_blocks for i in range(n_blocks + 1)]
        return [
            Block(path, start, stop, stop - start, shard.n_bytes * (stop - start) // n)
            for start, stop in pairwise(borders)
        ]


def find_file(folder: str, files: Mapping[str, FileVersion], *names: str) -> tuple[str, FileVersion]:
    """The first of these names that is a file of the folder.

    Raises:
        FileNotFoundError: none is.
    """
    for name in names:
        if name in files:
            return name, files[name]
    raise FileNotFoundError(f"{folder}/{_INDEX} names {' or '.join(map(repr, names))}, which is not in that folder.")


def find_decoder(decode: Decoders, field: str, encoding: str, known: Mapping[str, Decoder]) -> Decoder | None:
    """What decodes a field: what the user says of it, or of its encoding, else what is known of that."""
    if decode is False:
        return None
    own = {} if decode is True else decode
    return own[field] if field in own else own.get(encoding, known.get(encoding))


def read_offsets(shard: Shard, file: BinaryIO, start: int, stop: int) -> Places:
    """Where the records [start, stop) begin, and where the last of them ends."""
    n = np.frombuffer(_read_exactly(shard, file, 0, OFFSET.itemsize), OFFSET)[0]
    if n != shard.n_rows:
        raise damaged(shard, f"it has {n} records, and the index says {shard.n_rows}")
    table = _read_exactly(shard, file, OFFSET.itemsize * (1 + start), OFFSET.itemsize * (2 + stop))
    offsets = np.frombuffer(table, OFFSET).astype(np.int64)
    end = file.seek(0, io.SEEK_END)
    if (offsets[1:] < offsets[:-1]).any() or offsets[0] < OFFSET.itemsize * (n + 2) or offsets[-1] > end:
        raise damaged(shard, f"the offsets of the records {start} to {stop} lead outside")
    return offsets


def _read_exactly(shard: Shard, file: BinaryIO, start: int, stop: int) -> bytes:
    file.seek(start)
    content = file.read(stop - start)
    if len(content) != stop - start:
        raise damaged(shard, f"it ends at byte {start + len(content)}, and {shard.n_bytes} are expected")
    return content


def damaged(shard: Shard, problem: str) -> RecordError:
    return RecordError(f"{shard.file.path} is damaged: {problem}.")


def _cut_records(offsets: Places) -> Iterator[tuple[int, int]]:
    """Ranges of records of about `_CHUNK_BYTES` together."""
    low, n = 0, len(offsets) - 1
    while low < n:
        high = int(np.searchsorted(offsets, offsets[low] + _CHUNK_BYTES, side="right")) - 1
        yield low, (high := min(max(high, low + 1), n))
        low = high


class _Records:
    """Some records of a shard, one after the other in memory.

    Args:
        offsets: where each begins, and the last one ends.
        first: the number of the first of them in the shard.
    """

    def __init__(self, shard: Shard, content: bytes, offsets: Places, first: int) -> None:
        self._shard = shard
        self._content = content
        self._offsets = offsets
        self._first = first
        self._bad: dict[int, str] = {}

    def decode(self, wanted: Sequence[int], on_bad: OnBad | None) -> tuple[dict[str, Any], int]:
        """The columns of the fields, and how many records there are; without bad ones, which are reported.

        Raises:
            RecordError: a record is bad, and `on_bad` is None.
        """
        fields, values = self._shard.fields, self._split()
        self._note_misfits(values)
        columns = {fields[i].name: self._column(fields[i], values[i]) for i in wanted}
        n = len(self._offsets) - 1
        if not self._bad:
            return columns, n
        for i in sorted(self._bad):
            self._report(i, on_bad)
        kept = [i for i in range(n) if i not in self._bad]
        return {name: _pick(column, kept) for name, column in columns.items()}, len(kept)

    def _split(self) -> list[_Values]:
        """Where the values of each field are, by the sizes at the beginning of each record."""
        fields, begins = self._shard.fields, self._offsets[:-1]
        if not self._shard.has_sizes:
            return [_Values(begins, np.diff(self._offsets))]
        n_sizes = sum(field.n_bytes is None for field in fields)
        sizes = iter(self._numbers(begins, n_sizes))
        place, found = begins + n_sizes * OFFSET.itemsize, []
        for field in fields:
            size = next(sizes) if field.n_bytes is None else np.full(len(begins), field.n_bytes, np.int64)
            found.append(_Values(place, size))
            place = place + size
        return found

    def _numbers(self, begins: Places, n: int) -> Iterable[Places]:
        """`n` numbers of each record; none lies outside of the content."""
        if not n:
            return ()
        width = n * OFFSET.itemsize
        safe = np.minimum(begins, max(len(self._content) - width, 0))
        if len(self._content) < width:
            return [np.zeros(len(begins), np.int64)] * n
        numbers: Places = _gather(self._content, safe, width).view(OFFSET).astype(np.int64).T
        return numbers

    def _note_misfits(self, values: Sequence[_Values]) -> None:
        ends = values[-1].begins + values[-1].sizes if values else self._offsets[1:]
        for i in np.flatnonzero(ends != self._offsets[1:]).tolist():
            self._bad[i] = "the sizes of its fields do not add up to its own"
        for field, (_, sizes) in zip(self._shard.fields, values, strict=True):
            if field.dtype is not None:
                for i in np.flatnonzero(sizes != _n_bytes(field)).tolist():
                    self._bad.setdefault(i, f"the field {field.name!r} has {sizes[i]} bytes, not {_n_bytes(field)}")

    def _column(self, field: Field, values: _Values) -> Any:
        begins, sizes = values
        if self._bad:  # whose values are nowhere
            good = np.ones(len(begins), np.bool_)
            good[list(self._bad)] = False
            begins, sizes = np.where(good, begins, 0), np.where(good, sizes, 0)
            if field.dtype is not None and len(self._content) < _n_bytes(field):
                return [None] * len(begins)
        content = self._content
        if field.dtype is not None:
            raw = _gather(content, begins, _n_bytes(field))
            return raw.view(field.dtype).reshape(len(begins), *field.shape)
        pairs = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        parts = [content[begin:end] for begin, end in pairs]
        return parts if field.decode is None else self._decoded(field.name, field.decode, parts)

    def _decoded(self, name: str, decode: Decoder, parts: list[bytes]) -> list[Any]:
        try:
            return list(map(decode, parts))
        except MissingExtraError:
            raise
        except Exception:  # noqa: BLE001 (whatever a decoder raises, the record is bad)
            return [self._try(name, decode, i, part) for i, part in enumerate(parts)]

    def _try(self, name: str, decode: Decoder, i: int, part: bytes) -> Any:
        if i in self._bad:
            return None
        try:
            return decode(part)
        except Exception as error:  # noqa: BLE001
            self._bad[i] = f"the field {name!r} cannot be decoded: {type(error).__name__}: {error}"
            return None

    def _report(self, i: int, on_bad: OnBad | None) -> None:
        raw = self._content[self._offsets[i] : self._offsets[i + 1]][:_RAW_BYTES]
        where = f"{self._shard.file.path}, record {self._first + i}"
        skip_bad(BadRecord(where, raw, self._bad[i]), on_bad)


def _n_bytes(field: Field) -> int:
    assert field.dtype is not None
    return field.dtype.itemsize * int(np.prod(field.shape, dtype=np.int64))


def _gather(content: bytes, begins: Places, n_bytes: int) -> npt.NDArray[np.uint8]:
    """`n_bytes` from each of these places on, one row for each."""
    if n_bytes <= _FEW_BYTES:
        gathered: npt.NDArray[np.uint8] = np.frombuffer(content, np.uint8)[begins[:, None] + np.arange(n_bytes)]
        return gathered
    joined = bytearray().join([content[begin : begin + n_bytes] for begin in begins.tolist()])
    return np.frombuffer(joined, np.uint8).reshape(len(begins), n_bytes)


def _pick(column: Any, rows: list[int]) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]
