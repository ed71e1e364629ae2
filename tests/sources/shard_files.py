"""Writes shards of other libraries for tests, by their formats alone; those libraries need not be installed."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def offset_file(records: Sequence[bytes]) -> bytes:
    """A count, offsets and records, as MDS and LitData have them."""
    n = len(records)
    offsets = 4 * (n + 2) + np.cumsum([0, *map(len, records)])
    return np.array([n, *offsets], "<u4").tobytes() + b"".join(records)


def sized_record(values: Sequence[bytes], is_sized: Sequence[bool] | None = None) -> bytes:
    sizes = [len(v) for v, sized in zip(values, is_sized or [True] * len(values), strict=True) if sized]
    return np.array(sizes, "<u4").tobytes() + b"".join(values)


def write_mds(folder: Path, shards: Iterable[Sequence[tuple[int, str]]]) -> list[dict[str, Any]]:
    """Shards of the columns `id` (a number of eight bytes) and `word` (text); returns all samples."""
    folder.mkdir(exist_ok=True)
    entries, rows = [], []
    for number, samples in enumerate(shards):
        records = [sized_record([struct.pack("<q", i), w.encode()], [False, True]) for i, w in samples]
        content = offset_file(records)
        (folder / f"shard.{number:05}.mds").write_bytes(content)
        raw = {"basename": f"shard.{number:05}.mds", "bytes": len(content), "hashes": {}}
        entries.append(
            {
                "column_encodings": ["int", "str"],
                "column_names": ["id", "word"],
                "column_sizes": [8, None],
                "compression": None,
                "format": "mds",
                "hashes": [],
                "raw_data": raw,
                "samples": len(samples),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": None,
            }
        )
        rows += [{"id": i, "word": w} for i, w in samples]
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return rows


_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def write_litdata(folder: Path, chunks: Iterable[Sequence[tuple[int, str]]]) -> list[dict[str, Any]]:
    """Chunks of dicts with `id` and `word`; returns all samples."""
    folder.mkdir(exist_ok=True)
    entries, rows = [], []
    for number, samples in enumerate(chunks):
        content = offset_file([sized_record([struct.pack("<q", i), w.encode()]) for i, w in samples])
        (folder / f"chunk-0-{number}.bin").write_bytes(content)
        name = f"chunk-0-{number}.bin"
        entries.append({"chunk_bytes": len(content), "chunk_size": len(samples), "dim": None, "filename": name})
        rows += [{"id": i, "word": w} for i, w in samples]
    spec = {"type": "builtins.dict", "context": '["id", "word"]', "children_spec": [_LEAF, _LEAF]}
    config = {"compression": None, "data_format": ["int", "str"], "data_spec": json.dumps([1, spec])}
    config |= {"item_loader": "PyTreeLoader", "encryption": None}
    (folder / "index.json").write_text(json.dumps({"chunks": entries, "config": config}))
    return rows


def crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def masked(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord(records: Iterable[bytes]) -> bytes:
    framed = []
    for record in records:
        length = struct.pack("<Q", len(record))
        framed += [length, masked(length), record, masked(record)]
    return b"".join(framed)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


def feature(values: Sequence[Any], *, packed: bool = True) -> bytes:
    """A `tf.train.Feature`: of bytes, of floats, or of ints."""
    if values and isinstance(values[0], bytes):
        return field(0x0A, b"".join(field(0x0A, value) for value in values))
    if values and isinstance(values[0], float):
        floats = [struct.pack("<f", value) for value in values]
        return field(0x12, field(0x0A, b"".join(floats)) if packed else b"".join(b"\x0d" + each for each in floats))
    ints = [varint(value) for value in values]
    return field(0x1A, field(0x0A, b"".join(ints)) if packed else b"".join(b"\x08" + each for each in ints))


def example(features: dict[str, Sequence[Any]], *, packed: bool = True) -> bytes:
    entries = [
        field(0x0A, field(0x0A, name.encode()) + field(0x12, feature(values, packed=packed)))
        for name, values in features.items()
    ]
    return field(0x0A, b"".join(entries))
