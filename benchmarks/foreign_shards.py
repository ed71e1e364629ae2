"""How fast do records come from MDS, LitData and TFRecord files, next to the libraries that wrote them?

Batches of 256, 0 workers: 60,000 records of an id and 256 bytes, in shards of 8 MB. MosaicML Streaming and LitData read
their own shards in order, with torch's DataLoader and LitData's own; `tfrecord` reads its file with torch's DataLoader.
All give the same records. In-process, so that the readers are compared, not the workers.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils import data as torch_data

from benchmarks.report import Report, Settings, Target, progress
from benchmarks.streams_rates import BATCH, contest_rows, epoch_rate, longest_seconds, missing_peers, ratio
from benchmarks.timing import interleave, torch_threads
from headrace import DataLoader, read_litdata, read_mds, read_tfrecord

N_RECORDS, RECORD_BYTES = 60_000, 256
SHARD_BYTES = 8 << 20
BARS = {"mds": 3, "litdata": 3, "tfrecord": 5}
MODULES = {"mds": "streaming", "litdata": "litdata", "tfrecord": "tfrecord"}


def records(n: int) -> Iterator[dict[str, Any]]:
    source = random.Random(0)
    return ({"id": i, "data": source.randbytes(RECORD_BYTES)} for i in range(n))


def mosaic() -> Any:
    """MosaicML's readers, without what else its package imports, such as torchvision."""
    if "streaming" not in sys.modules:
        spec = importlib.util.find_spec("streaming")
        package = types.ModuleType("streaming")
        package.__path__ = list(spec.submodule_search_locations or ()) if spec else []
        sys.modules["streaming"] = package
    return importlib.import_module("streaming.base")


def write_mds(folder: Path, n: int) -> None:
    columns = {"id": "int", "data": "bytes"}
    with mosaic().MDSWriter(out=str(folder), columns=columns, size_limit=SHARD_BYTES) as writer:
        for record in records(n):
            writer.write(record)


def write_litdata(folder: Path, n: int) -> None:
    from litdata.streaming import Cache

    cache = Cache(str(folder), chunk_bytes=SHARD_BYTES)
    for i, record in enumerate(records(n)):
        cache[i] = record
    cache.done()
    cache.merge()


def write_tfrecord(folder: Path, n: int) -> None:
    from tfrecord import TFRecordWriter

    folder.mkdir()
    writer = TFRecordWriter(str(folder / "data.tfrecord"))
    for record in records(n):
        writer.write({"id": (record["id"], "int"), "data": (record["data"], "byte")})
    writer.close()


def mds_peer(folder: Path) -> Any:
    dataset = mosaic().StreamingDataset(local=str(folder), shuffle=False, batch_size=BATCH)
    return torch_data.DataLoader(dataset, batch_size=BATCH)


def litdata_peer(folder: Path) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    return StreamingDataLoader(StreamingDataset(str(folder), shuffle=False), batch_size=BATCH)


def tfrecord_peer(folder: Path) -> Any:
    from tfrecord.torch.dataset import TFRecordDataset

    dataset = TFRecordDataset(str(folder / "data.tfrecord"), None, {"id": "int", "data": "byte"})
    return torch_data.DataLoader(dataset, batch_size=BATCH)


READ = {
    "mds": read_mds,
    "litdata": read_litdata,
    "tfrecord": lambda folder, **options: read_tfrecord(folder, features={"id": int, "data": bytes}, **options),
}
WRITE = {"mds": write_mds, "litdata": write_litdata, "tfrecord": write_tfrecord}
PEERS = {"mds": mds_peer, "litdata": litdata_peer, "tfrecord": tfrecord_peer}


def run(settings: Settings) -> Report:
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    warnings.simplefilter("ignore")
    missing = missing_peers(*MODULES.values())
    names = [name for name in READ if importlib.util.find_spec(MODULES[name]) is not None]
    with tempfile.TemporaryDirectory() as root, torch_threads(1):
        for name in names:
            progress(f"[foreign_shards] {name}")
            folder = Path(root, name)
            WRITE[name](folder, 5000 if settings.quick else N_RECORDS)
            ours, columns, peer = f"headrace, {name}", f"headrace, {name}, columns", f"{name}'s own reader"
            loaders = {
                ours: DataLoader(READ[name](folder), batch_size=BATCH),
                columns: DataLoader(READ[name](folder, rows="columns"), batch_size=BATCH),
                peer: PEERS[name](folder),
            }
            longest_s = longest_seconds(settings)
            runs = {each: epoch_rate(loader, BATCH, longest_s) for each, loader in loaders.items()}
            found = interleave(runs, settings.repeats)
            rows += contest_rows(name, 0, found, "records/s")
            figures = {(each, 0): own for each, own in found.items()}
            targets += [
                Target(f"{each} against {peer}", BARS[name], ratio(figures, (each, 0), (peer, 0)))
                for each in (ours, columns)
            ]
    return Report(rows, targets, missing)
