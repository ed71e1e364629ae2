"""LitData's chunks, read as they are."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, TypeAlias, final

import numpy as np
import numpy.typing as npt

from headrace.sources.chunks import ColumnChunk, ObjectChunk
from headrace.sources.compression import decompress
from headrace.sources.files import open_range
from headrace.sources.mds import decode_raw_image, decode_several
from headrace.sources.shards import OFFSET, Decoder, Field, Shard, ShardSource, damaged, find_file, read_offsets
from headrace.sources.source import Block, Chunk, FileVersion, OnBad
from headrace.sources.tar import decode_image, decode_text

Build: TypeAlias = Callable[[Iterator[Any]], Any]
"""Makes a sample of its leaves, and takes as many of them as it needs."""

_TENSOR_DTYPES = (
    *("f4", "f4", "f8", "f8", "c8", "c8", "c16", "c16", "f2", "f2", None, "u1", "i1"),
    *("i2", "i2", "i4", "i4", "i8", "i8", "?", "u2"),
)
_ARRAY_DTYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?")
_NUMBERS = {"int": np.dtype("<i8"), "float": np.dtype("<f8"), "bool": np.dtype("?")}
_LOADERS = ("PyTreeLoader", "TokensLoader")
_FRAMES = struct.Struct("<8sHHIII")  # a mark, version, flags, the numbers of records, of records in a frame, of frames
_FRAMES_MARK = b"LDFZ01\0\0"
_FRAME = struct.Struct("<IIQII")  # the first record, their number, where it is, how long, and how long decompressed
_TABLE_MARK = b"LDARW01\0"  # at the very end, behind a table and its uint32 length


@final
class LitDataSource(ShardSource):
    """Samples of LitData's chunks, in the shape that they were written in: dicts, tuples, lists, single values.

    Tensors are arrays. Pickled leaves stay bytes. Of chunks of tokens, a row is what was written as one sample.
    """

    format = "litdata"

    def _find_shards(self, folder: str, index: Any, files: Mapping[str, FileVersion]) -> Iterator[Shard]:
        config = index["config"]
        if config.get("encryption"):
            raise ValueError("encrypted chunks cannot be read")
        if (loader := config.get("item_loader") or _LOADERS[0]) not in _LOADERS:
            raise ValueError(f"chunks must be those of {' or '.join(_LOADERS)}, got {loader}")
        codec = _codec(config.get("compression"), config.get("compression_level"))
        names = _leaf_names(config.get("data_spec"), len(config["data_format"]))
        fields = tuple(self._field(name, kind) for name, kind in zip(names, config["data_format"], strict=True))
        for entry in index["chunks"]:
            _, file = find_file(folder, files, entry["filename"])
            n_rows, n_bytes, has_sizes = int(entry["chunk_size"]), int(entry["chunk_bytes"]), loader == _LOADERS[0]
            yield Shard(file, n_rows, n_bytes, codec, fields, has_sizes, config.get("data_spec"))

    def _field(self, name: str, data_format: str) -> Field:
        kind, _, detail = data_format.partition(":")
        own = self._decode if isinstance(self._decode, Mapping) else {}
        if self._decode is False or name in own or kind in own:
            return Field(name, decode=own.get(name, own.get(kind)))
        if kind in _NUMBERS:
            return Field(name, dtype=_NUMBERS[kind])
        if kind in ("no_header_tensor", "no_header_numpy"):
            dtypes = _TENSOR_DTYPES if kind == "no_header_tensor" else _ARRAY_DTYPES
            return Field(name, decode=partial(_decode_vector, dtype=_dtype(dtypes, int(detail))))
        if kind not in _DECODERS:
            raise ValueError(f"the format {data_format!r} of {name!r} is unknown. Pass decode={{{kind!r}: ...}}")
        return Field(name, decode=_DECODERS[kind])

    def _open(self, shard: Shard) -> BinaryIO:
        if shard.codec != "frames":
            return super()._open(shard)
        with open_range(shard.file, 0, None, self._options) as opened:
            return _unframed(shard, opened.read())

    def _chunks(self, block: Block, first: int, on_bad: OnBad | None) -> Iterator[Chunk]:
        shard = self._shards[block.path]
        if shard.codec is None and shard.has_sizes and shard.fields:
            with self._open(shard) as file:
                offsets = read_offsets(shard, file, block.start, block.stop)
                if offsets[0] == offsets[-1]:  # the records are elsewhere
                    yield from self._table_rows(shard, file, block.start + first, block.stop)
                    return
        yield from super()._chunks(block, first, on_bad)

    def _table_rows(self, shard: Shard, file: BinaryIO, start: int, stop: int) -> Iterator[Chunk]:
        """The rows of the Arrow table behind the records, which some chunks have in their place."""
        from headrace.sources.arrow_ipc import rows_of_file

        end = file.seek(0, io.SEEK_END)
        file.seek(max(0, end - 12))
        (length,), mark = struct.unpack("<I", file.read(4)), file.read(8)
        if mark != _TABLE_MARK or length > end - 12:
            raise damaged(shard, "its records are empty, and no table follows them")
        file.seek(end - 12 - length)
        yield from rows_of_file(shard.file.path, file.read(length), start, stop, self._columns)

    def _as_chunk(self, shard: Shard, columns: dict[str, Any], n_rows: int) -> Chunk:
        build, is_flat = _builder(shard.detail)
        if is_flat or self._columns is not None:
            return ColumnChunk(columns, n_rows)
        leaves = zip(*(_objects(column) for column in columns.values()), strict=True)
        return ObjectChunk([build(iter(each)) for each in leaves])


def _codec(compression: str | None, level: str | None) -> str | None:
    if not compression:
        return None
    if compression.partition(":")[0] != "zstd" or level not in (None, "", "chunk", "batch"):
        raise ValueError(
            f"chunks must be compressed with zstd, as a whole or in batches, got {compression!r}, level {level!r}"
        )
    return "frames" if level == "batch" else "zstd"


def _unframed(shard: Shard, content: bytes) -> io.BytesIO:
    """A chunk that was compressed in parts, as if it were not."""
    mark, _, _, n, _, n_frames = _FRAMES.unpack_from(content)
    if mark != _FRAMES_MARK:
        raise damaged(shard, "it does not begin as a chunk that is compressed in batches")
    begin = _FRAMES.size + OFFSET.itemsize * (n + 1)
    offsets = np.frombuffer(content, OFFSET, n + 1, _FRAMES.size).astype(np.int64) + OFFSET.itemsize * (n + 2)
    frames = [_FRAME.unpack_from(content, begin + i * _FRAME.size) for i in range(n_frames)]
    first = frames[0][2] if frames else len(content)
    with decompress(io.BytesIO(content[first:]), "zstd", shard.file.path) as records:
        return io.BytesIO(OFFSET.type(n).tobytes() + offsets.astype(OFFSET).tobytes() + records.read())


def _leaf_names(spec: str | None, n_leaves: int) -> list[str]:
    """The leaves of samples by their keys: `image`, `box.0`; those of no dict by their numbers."""
    names = list(_names_below(_tree(spec), ""))
    if len(names) != n_leaves:
        raise ValueError(f"data_spec has {len(names)} leaves, and data_format {n_leaves}")
    return names


def _tree(spec: str | None) -> Mapping[str, Any]:
    tree: Mapping[str, Any] = {"type": None} if spec is None else json.loads(spec)[1]
    return tree


def _names_below(tree: Mapping[str, Any], name: str) -> Iterator[str]:
    if tree["type"] is None:
        yield name or "value"
        return
    for key, child in zip(_keys(tree), tree["children_spec"], strict=True):
        yield from _names_below(child, f"{name}.{key}" if name else str(key))


def _keys(tree: Mapping[str, Any]) -> Sequence[Any]:
    match tree["type"]:
        case "builtins.dict" | "collections.OrderedDict":
            keys: Sequence[Any] = json.loads(tree["context"])
            return keys
        case "builtins.list" | "builtins.tuple":
            return range(len(tree["children_spec"]))
        case other:
            raise ValueError(f"samples must be made of dicts, lists and tuples, got {other}")


def _builder(spec: str | None) -> tuple[Build, bool]:
    """What makes samples of their leaves, and whether they are dicts of leaves."""
    tree = _tree(spec)
    is_flat = tree["type"] in ("builtins.dict", "collections.OrderedDict") and all(
        child["type"] is None for child in tree["children_spec"]
    )
    return _build(tree), is_flat


def _build(tree: Mapping[str, Any]) -> Build:
    if tree["type"] is None:
        return next
    keys, builds = _keys(tree), [_build(child) for child in tree["children_spec"]]
    if isinstance(keys, range):
        kind = list if tree["type"] == "builtins.list" else tuple
        return lambda leaves: kind([build(leaves) for build in builds])
    return lambda leaves: {key: build(leaves) for key, build in zip(keys, builds, strict=True)}


def _objects(column: Any) -> Sequence[Any]:
    values: Sequence[Any] = column.tolist() if isinstance(column, np.ndarray) else column
    return values


def _dtype(dtypes: Sequence[str | None], number: int) -> np.dtype[Any]:
    name = dtypes[number] if 0 <= number < len(dtypes) else None
    if name is None:
        raise ValueError(f"arrays of the type number {number} cannot be read")
    dtype: np.dtype[Any] = np.dtype(name).newbyteorder("<")
    return dtype


def _decode_vector(content: bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(bytearray(content), dtype)


def _decode_array(content: bytes, order: str, dtypes: Sequence[str | None]) -> npt.NDArray[Any]:
    """An array behind its type, its number of dimensions, and their sizes."""
    number, n_dims, *_ = np.frombuffer(content, f"{order}u4", 2).tolist()
    shape = np.frombuffer(content, f"{order}u4", n_dims, 8).tolist()
    array: npt.NDArray[Any] = _decode_vector(content[8 + 4 * n_dims :], _dtype(dtypes, number)).reshape(shape)
    return array


def _decode_nested(content: bytes) -> Any:
    """Lists and dicts as LitData packs them; older chunks have JSON."""
    return json.loads(content) if content[0] > ord(" ") else _Nested(content).value()


class _Nested:
    """Reads packed values, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def value(self) -> Any:
        match self._number("<B"):
            case 0:
                return json.loads(self._bytes())
            case 1:
                return [self._bytes().decode() for _ in range(self._number("<I"))]
            case 2:
                return self._numbers("<i8")
            case 3:
                return self._numbers("<f8")
            case 4:
                return self._numbers("?")
            case 5:
                return {self._bytes().decode(): self.value() for _ in range(self._number("<I"))}
            case 6:
                n, n_keys = self._number("<I"), self._number("<I")
                keys = [self._bytes().decode() for _ in range(n_keys)]
                return [{key: self.value() for key in keys} for _ in range(n)]
            case 7 | 0x11:
                return self._bytes().decode()
            case 8 | 0x12:
                return self._number("<q")
            case 9 | 0x13:
                return self._number("<d")
            case 10 | 0x14:
                return bool(self._number("<B"))
            case 11 | 0x10:
                return None
            case other:
                raise ValueError(f"there is no kind of value {other}")

    def _number(self, kind: str) -> Any:
        (number,) = struct.unpack_from(kind, self._content, self._place)
        self._place += struct.calcsize(kind)
        return number

    def _bytes(self) -> bytes:
        n = self._number("<I")
        self._place += n
        if self._place > len(self._content):
            raise ValueError("it ends too early")
        return self._content[self._place - n : self._place]

    def _numbers(self, kind: str) -> list[Any]:
        n = self._number("<I")
        numbers = np.frombuffer(self._content, kind, n, self._place)
        self._place += numbers.nbytes
        values: list[Any] = numbers.tolist()
        return values


_DECODERS: Mapping[str, Decoder | None] = {
    **dict.fromkeys(("bytes", "pickle", "file", "video", "audio", "nifti", "mesh", "pdf", "graph", "tifffile")),
    **dict.fromkeys(("str", "text"), decode_text),
    **dict.fromkeys(("jpeg", "image"), decode_image),
    "pil": decode_raw_image,
    "jpeg_array": partial(decode_several, decode=decode_image),
    "tensor": partial(_decode_array, order=">", dtypes=_TENSOR_DTYPES),
    "numpy": partial(_decode_array, order="<", dtypes=_ARRAY_DTYPES),
    "json": _decode_nested,
}
