"""MosaicML Streaming's MDS shards, read as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt

from headrace.base.errors import RecordError
from headrace.base.optional import import_extra
from headrace.sources.shards import Decoder, Field, Shard, ShardSource, find_decoder, find_file
from headrace.sources.source import FileVersion
from headrace.sources.tar import decode_image, decode_text

_CODECS = {"gz": "gzip", "zstd": "zstd", "bz2": "bz2"}
_VERSION = 2
_NUMBERS = {
    "int": np.int64,
    **{name: getattr(np, name) for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")},
    **{name: getattr(np, name) for name in ("float16", "float32", "float64")},
}
_DTYPES_BY_NUMBER = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_SHAPE_DTYPES = ("<u1", "<u2", "<u4", "<u8")


@final
class MdsSource(ShardSource):
    """Samples of MDS shards: dicts, decoded by the encodings in the index. Pickled columns stay bytes."""

    format = "mds"

    def _find_shards(self, folder: str, index: Any, files: Mapping[str, FileVersion]) -> Iterator[Shard]:
        if index["version"] != _VERSION:
            raise ValueError(f"the version must be {_VERSION}, got {index['version']}")
        for entry in index["shards"]:
            if entry["format"] != "mds":
                cure = "read_jsonl" if entry["format"] == "json" else "read_csv"
                raise ValueError(f"shards must be 'mds', got {entry['format']!r}. Read its files with {cure}")
            raw, packed = entry["raw_data"], entry.get("zip_data")
            names = [raw["basename"], *([packed["basename"]] if packed else [])]
            name, file = find_file(folder, files, *names)
            codec = None if name == raw["basename"] else _codec(entry["compression"])
            fields = zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True)
            own = tuple(self._field(name, encoding, size or None) for name, encoding, size in fields)
            yield Shard(file, int(entry["samples"]), int(raw["bytes"]), codec, own)

    def _field(self, name: str, encoding: str, size: int | None) -> Field:
        kind, _, rest = encoding.partition(":")
        if self._decode is False:
            return Field(name, size)
        if isinstance(self._decode, Mapping) and not {name, kind, encoding}.isdisjoint(self._decode):
            return Field(name, size, decode=find_decoder(self._decode, name, kind, {}))
        if kind in _NUMBERS:
            return Field(name, size, np.dtype(_NUMBERS[kind]).newbyteorder("<"))
        if kind == "ndarray":
            return _array_field(name, size, rest)
        if kind not in _DECODERS:
            raise ValueError(f"the encoding {encoding!r} of {name!r} is unknown. Pass decode={{{name!r}: ...}}")
        return Field(name, size, decode=_DECODERS[kind])


def _codec(compression: str) -> str:
    name = compression.partition(":")[0]
    if name not in _CODECS:
        raise ValueError(f"shards must be compressed with one of {', '.join(_CODECS)}, got {name!r}. Unpack them")
    return _CODECS[name]


def _array_field(name: str, size: int | None, encoding: str) -> Field:
    """A field of arrays, whose type and shape may be part of the encoding: `int32:3,4`."""
    dtype, _, shape = encoding.partition(":")
    known = tuple(map(int, shape.split(","))) if shape else None
    if dtype and known:
        return Field(name, size, np.dtype(dtype).newbyteorder("<"), known)
    return Field(name, size, decode=partial(_decode_array, dtype=dtype or None, shape=known))


def _decode_array(content: bytes, dtype: str | None, shape: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """An array; what the encoding leaves open is in front of its numbers."""
    place = 0
    if dtype is None:
        dtype, place = _DTYPES_BY_NUMBER[content[0]], 1
    if shape is None:
        n_dims, width = content[place] >> 2, content[place] & 3
        sizes = np.frombuffer(content, _SHAPE_DTYPES[width], n_dims, place + 1)
        shape, place = tuple(sizes.tolist()), place + 1 + sizes.nbytes
    return np.frombuffer(bytearray(content[place:]), np.dtype(dtype).newbyteorder("<")).reshape(shape)


def decode_raw_image(content: bytes) -> npt.NDArray[np.uint8]:
    """An image that is not compressed: width, height, the length of its mode, the mode, the pixels."""
    pillow = import_extra("PIL.Image", "pillow", "Decoding images")
    width, height, n = np.frombuffer(content, "<u4", 3).tolist()
    mode = content[12 : 12 + n].decode()
    image = pillow.frombytes(mode, (width, height), content[12 + n :])
    return np.array(image.convert("RGB"))


def decode_several(content: bytes, decode: Decoder) -> list[Any]:
    """Values, with their number and their sizes in front of them."""
    n = int(np.frombuffer(content, "<u4", 1)[0])
    ends = 4 * (n + 1) + np.cumsum(np.frombuffer(content, "<u4", n, 4), dtype=np.int64)
    if n and ends[-1] != len(content):
        raise RecordError("the sizes of its values do not add up to its own")
    return [decode(content[begin:end]) for begin, end in pairwise([4 * (n + 1), *ends.tolist()])]


def _decode_list(content: bytes, decode: Decoder) -> list[Any]:
    """The same behind four bytes that mean nothing yet."""
    return decode_several(content[4:], decode)


def _decode_decimal(content: bytes) -> Decimal:
    return Decimal(content.decode())


_DECODERS: Mapping[str, Decoder | None] = {
    "bytes": None,
    "pkl": None,
    "str": decode_text,
    "str_int": int,
    "str_float": float,
    "str_decimal": _decode_decimal,
    "json": json.loads,
    "jpeg": decode_image,
    "png": decode_image,
    "pil": decode_raw_image,
    "list[jpeg]": partial(_decode_list, decode=decode_image),
    "list[png]": partial(_decode_list, decode=decode_image),
    "list[pil]": partial(_decode_list, decode=decode_raw_image),
    "jpeg_array": partial(decode_several, decode=decode_image),
    "jpegarray": partial(decode_several, decode=decode_image),
}
