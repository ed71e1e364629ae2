"""Writes data with another library, and reads it with that library; in a process of its own, which it may leave as it likes.

`python -m tests.sources.library_rows NAME FOLDER` writes data sets below the folder, and `rows.pickle` with their rows.
"""  # noqa: E501

from __future__ import annotations

import importlib.util
import json
import pickle
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

N = 50
MDS_COLUMNS = {
    "number": "int",
    "small": "int8",
    "real": "float32",
    "text": "str",
    "raw": "bytes",
    "fixed": "ndarray:float32:2,3",
    "typed": "ndarray:int16",
    "free": "ndarray",
    "json": "json",
    "big": "str_int",
    "decimal": "str_decimal",
    "png": "png",
    "pil": "pil",
}


def rows_of_library(name: str, module: str, folder: Path) -> dict[str, list[Any]]:
    """The rows of each data set that the library wrote below the folder; skips the test where it is not installed."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}")
    command = [sys.executable, "-W", "ignore", "-m", "tests.sources.library_rows", name, str(folder)]
    subprocess.run(command, check=True, timeout=240, stdout=subprocess.DEVNULL)
    rows: dict[str, list[Any]] = pickle.loads((folder / "rows.pickle").read_bytes())
    return rows


def plain(value: Any) -> Any:
    """A value of any library as plain Python."""
    match value:
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(plain(each) for each in value)
        case memoryview():
            return bytes(value)
        case _ if type(value).__module__.startswith("PIL"):
            return np.asarray(value.convert("RGB")).tolist()
        case _:
            return np.asarray(value).tolist() if hasattr(value, "dtype") else value


def mds_samples() -> Iterator[dict[str, Any]]:
    from PIL import Image

    random = np.random.default_rng(0)
    for i in range(N):
        pixels = random.integers(0, 255, (4, 5, 3), np.uint8)
        yield {
            "number": i,
            "small": np.int8(i),
            "real": np.float32(i / 3),
            "text": "é" * (i % 4),
            "raw": bytes(i % 3),
            "fixed": random.random((2, 3)).astype(np.float32),
            "typed": np.arange(i + 1, dtype=np.int16),
            "free": np.ones((i % 3 + 1, 2), np.uint8),
            "json": {"i": [i, None]},
            "big": 10**30 + i,
            "decimal": Decimal("1.50") * i,
            "png": Image.fromarray(pixels),
            "pil": Image.fromarray(pixels),
        }


def without_package_imports(name: str) -> None:
    """Make a package whose `__init__` is not run: MosaicML's imports torchvision, for other things than shards."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    package = types.ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[name] = package


def mosaic(folder: Path) -> dict[str, list[Any]]:
    without_package_imports("streaming")
    from streaming.base import MDSWriter
    from streaming.base.compression import decompress
    from streaming.base.format import reader_from_json

    rows = {}
    for name, compression in (("plain", None), ("zstd", "zstd"), ("gzip", "gz")):
        out = folder / name
        with MDSWriter(out=str(out), columns=MDS_COLUMNS, compression=compression, size_limit=1 << 13) as writer:
            for sample in mds_samples():
                writer.write(sample)
        entries = json.loads((out / "index.json").read_text())["shards"]
        raw = [out / entry["raw_data"]["basename"] for entry in entries]
        for path, entry in zip(raw, entries, strict=True):
            if compression:
                path.write_bytes(decompress(compression, (out / entry["zip_data"]["basename"]).read_bytes()))
        readers = [reader_from_json(str(out), None, entry) for entry in entries]
        rows[name] = [plain(reader[i]) for reader in readers for i in range(reader.samples)]
        for path in raw if compression else ():
            path.unlink()  # only the compressed ones are left, as in a store
    return rows


LITDATA_SAMPLES = {
    "dicts": lambda i: {"id": i, "x": i / 3, "ok": i % 2 == 0, "text": "é" * i, "raw": bytes(i), "n": np.arange(i)},
    "nested": lambda i: {"a": {"b": i, "c": np.ones((2, i + 1), np.float32)}, "l": [1, 2.5, "x"], "r": [{"k": i}]},
    "tuples": lambda i: (i, "text", np.arange(3, dtype=np.uint16)),
    "single": lambda i: i,
    "table": lambda i: {"text": "word " * i, "tags": ["a", "b"]},
}


def litdata(folder: Path) -> dict[str, list[Any]]:
    import torch
    from litdata import StreamingDataset
    from litdata.streaming import Cache

    samples = {**LITDATA_SAMPLES, "tensors": lambda i: {"v": torch.arange(i), "m": torch.full((2, 2), i).half()}}
    rows = {}
    for name, make in samples.items():
        for compression in (None, "zstd"):
            out = folder / f"{name} {compression}"
            cache = Cache(str(out), chunk_size=7, compression=compression)
            for i in range(N):
                cache[i] = make(i)
            cache.done()
            cache.merge()
            dataset = StreamingDataset(str(out), shuffle=False)
            rows[out.name] = [plain(dataset[i]) for i in range(N)]
    return rows


def tfrecord(folder: Path) -> dict[str, list[Any]]:
    from tfrecord import TFRecordWriter
    from tfrecord.reader import tfrecord_loader

    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(1)
    path = folder / "data.tfrecord"
    writer = TFRecordWriter(str(path))
    for i in range(N):
        example = {
            "id": (i * 1_000_003 - 7, "int"),
            "tokens": (random.integers(-(2**40), 2**40, i % 5 + 1).tolist(), "int"),
            "x": (random.random(3).tolist(), "float"),
            "image": (bytes(i), "byte"),
        }
        writer.write(example if i % 7 else {"id": (i, "int")})
    writer.close()
    return {path.name: [plain(row) for row in tfrecord_loader(str(path), None)]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    library, target = sys.argv[1], Path(sys.argv[2])
    found = {"mosaic": mosaic, "litdata": litdata, "tfrecord": tfrecord}[library](target)
    (target / "rows.pickle").write_bytes(pickle.dumps(found))
