"""How fast do 200,000 records of 2 KB come from files, in order and shuffled, next to the peers' own formats?

Batches of 256, 0, 1 and 2 workers; 16 files of each format. Hugging Face `datasets` streams the same Parquet files: row
by row, which torch's DataLoader collates, as its documentation shows it, and with batches that it cuts itself, which is
much faster. LitData reads its own chunks with its own loader; webdataset reads the same tar archives with its own
loader, which gets whole batches. All give the bytes of records as Python objects. Shuffles have buffers of 10,000
records (webdataset: 1,000, as it recommends; LitData shuffles within chunks), which peers fill before their clock
starts. The limits are pyarrow alone, which reads the files and makes the objects, in one process; and two processes
that read with pyarrow and copy the bytes to shared memory, from which the loop makes the objects.
"""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils import data as torch_data

from benchmarks.bare_processes import BareProcesses
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.steady import NOT_SLOWER
from benchmarks.streams_rates import (
    BATCH,
    WORKER_COUNTS,
    contest_rows,
    epoch_rate,
    longest_seconds,
    missing_peers,
    ratio,
    with_workers,
)
from benchmarks.timing import interleave, torch_threads
from headrace import DataLoader, read_parquet, read_tar

N_FILES = 16
RECORD_BYTES = 2048
BUFFER = 10_000
WEBDATASET_BUFFER = 1000
PARQUET, TAR = "headrace, Parquet", "headrace, tar"
HUGGING_FACE, LITDATA, WEBDATASET = "datasets, Parquet", "LitData", "webdataset, tar"
HUGGING_FACE_ROWS = "datasets, Parquet, row by row"
LIMIT = "limit: pyarrow alone"
LIMIT_OF_TWO = "limit: two bare processes"
BESIDE = ", 0 workers"
PEERS = {HUGGING_FACE: "datasets", HUGGING_FACE_ROWS: "datasets", LITDATA: "litdata", WEBDATASET: "webdataset"}
Make = Callable[[Path, bool, int], Any]
"""Makes a loader, given the folder of all files, whether to shuffle, and the number of workers."""


def records(n: int) -> Iterator[dict[str, Any]]:
    """Records of random bytes."""
    source = random.Random(0).randbytes(1 << 22)
    for i in range(n):
        start = i * 37 % (len(source) - RECORD_BYTES)
        yield {"id": i, "data": source[start : start + RECORD_BYTES]}


def write_files(folder: Path, n: int) -> None:
    rows = list(records(n))
    for number in range(N_FILES):
        part = rows[number * n // N_FILES : (number + 1) * n // N_FILES]
        pq.write_table(pa.Table.from_pylist(part), folder / f"{number:04}.parquet", row_group_size=2000)
        write_tar(folder / f"{number:04}.tar", part)
    if not missing_peers("litdata"):
        write_litdata(folder / "litdata", rows)


def write_tar(path: Path, rows: list[dict[str, Any]]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for row in rows:
            header = tarfile.TarInfo(f"{row['id']:08}.bin")
            header.size = RECORD_BYTES
            archive.addfile(header, io.BytesIO(row["data"]))


def write_litdata(folder: Path, rows: list[dict[str, Any]]) -> None:
    from litdata.streaming import Cache

    cache = Cache(str(folder), chunk_bytes="32MB")
    for i, row in enumerate(rows):
        cache[i] = row
    cache.done()
    cache.merge()


def parquet_loader(folder: Path, shuffled: bool, workers: int) -> Any:
    stream = read_parquet(f"{folder}/*.parquet", rows="columns")
    return DataLoader(stream.shuffle() if shuffled else stream, batch_size=BATCH, seed=0, **with_workers(workers))


def tar_loader(folder: Path, shuffled: bool, workers: int) -> Any:
    stream = read_tar(f"{folder}/*.tar", decode=False)
    return DataLoader(stream.shuffle() if shuffled else stream, batch_size=BATCH, seed=0, **with_workers(workers))


class PyarrowAlone:
    """Batches of Python objects as pyarrow makes them, within each row group."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.parquet"))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for path in self.files:
            for batch in pq.ParquetFile(path, memory_map=True).iter_batches(BATCH, use_threads=False):
                yield {"id": batch.column("id").to_numpy(), "data": batch.column("data").to_pylist()}


def hugging_face_dataset(folder: Path, shuffled: bool) -> Any:
    from datasets import load_dataset

    dataset = load_dataset("parquet", data_files=f"{folder}/*.parquet", split="train", streaming=True)
    return dataset.shuffle(seed=0, buffer_size=BUFFER) if shuffled else dataset


def hugging_face_loader(folder: Path, shuffled: bool, workers: int) -> Any:
    dataset = hugging_face_dataset(folder, shuffled).batch(BATCH)
    return torch_data.DataLoader(dataset, batch_size=None, **with_workers(workers))


def hugging_face_rows_loader(folder: Path, shuffled: bool, workers: int) -> Any:
    return torch_data.DataLoader(hugging_face_dataset(folder, shuffled), batch_size=BATCH, **with_workers(workers))


def litdata_loader(folder: Path, shuffled: bool, workers: int) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(str(folder / "litdata"), shuffle=shuffled)
    return StreamingDataLoader(dataset, batch_size=BATCH, **with_workers(workers))


def webdataset_loader(folder: Path, shuffled: bool, workers: int) -> Any:
    import webdataset

    files = sorted(map(str, folder.glob("*.tar")))
    dataset = webdataset.WebDataset(files, shardshuffle=N_FILES if shuffled else False)
    dataset = dataset.shuffle(WEBDATASET_BUFFER) if shuffled else dataset
    return webdataset.WebLoader(dataset.to_tuple("bin").batched(BATCH), batch_size=None, **with_workers(workers))


MAKE: dict[str, Make] = {
    PARQUET: parquet_loader,
    TAR: tar_loader,
    HUGGING_FACE: hugging_face_loader,
    HUGGING_FACE_ROWS: hugging_face_rows_loader,
    LITDATA: litdata_loader,
    WEBDATASET: webdataset_loader,
}


def run(settings: Settings) -> Report:
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    names = [name for name in MAKE if name not in PEERS or not missing_peers(PEERS[name])]
    warnings.filterwarnings("ignore", module="litdata|webdataset|datasets")
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        progress("[streams_records] writing the files")
        write_files(Path(folder), 8000 if settings.quick else 200_000)
        for shuffled in (False, True):
            order = "shuffled" if shuffled else "in order"
            figures: dict[tuple[str, int], list[float]] = {}
            for workers in WORKER_COUNTS:
                progress(f"[streams_records] {order}, {workers} workers")
                loaders = {name: MAKE[name](Path(folder), shuffled, workers) for name in names}
                if not shuffled and not workers:
                    loaders[LIMIT] = PyarrowAlone(Path(folder))
                if workers == 2:
                    loaders |= {name + BESIDE: MAKE[name](Path(folder), shuffled, 0) for name in (PARQUET, TAR)}
                    if not shuffled:
                        loaders[LIMIT_OF_TWO] = BareProcesses(sorted(Path(folder).glob("*.parquet")), BATCH, 2)
                longest_s = longest_seconds(settings)
                runs = {
                    name: epoch_rate(loader, BATCH, longest_s, from_first=name in {*PEERS, LIMIT_OF_TWO})
                    for name, loader in loaders.items()
                }
                found = interleave(runs, settings.repeats)
                figures |= {(name, workers): own for name, own in found.items()}
                rows += contest_rows(order, workers, found, "records/s")
            targets += targets_of(order, figures)
    return Report(rows, targets, missing_peers(*dict.fromkeys(PEERS.values())))


def targets_of(order: str, figures: dict[tuple[str, int], list[float]]) -> Iterator[Target]:
    bars = ((PARQUET, HUGGING_FACE_ROWS, 5), (PARQUET, HUGGING_FACE, 5), (PARQUET, LITDATA, 2), (TAR, WEBDATASET, 8))
    for ours, peer, bar in bars:
        for workers in (0, 2):
            if (peer, workers) in figures:
                what = f"{ours} against {peer}, {order}, {workers} workers"
                yield Target(what, bar, ratio(figures, (ours, workers), (peer, workers)))
    for ours in (PARQUET, TAR):
        beside = ratio(figures, (ours, 2), (ours + BESIDE, 2))
        yield Target(f"{ours}, {order}, 2 workers not slower than 0", NOT_SLOWER, beside)
