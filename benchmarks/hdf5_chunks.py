"""How fast do the entries of a chunked HDF5 file come, next to the usual h5py dataset in torch's DataLoader?

30,000 entries of 64 x 4 floats and a label, in gzip chunks of 256; batches of 256, in order and shuffled, in-process.
The usual dataset opens the file in `__getitem__`, keeps its arrays, and reads one entry at a time; h5py caches chunks.
Shuffled, headrace reads whole chunks in random order, and mixes the entries of eight blocks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils import data as torch_data

from benchmarks.report import Report, Settings, Target, progress
from benchmarks.streams_rates import BATCH, contest_rows, epoch_rate, longest_seconds, missing_peers, ratio
from benchmarks.timing import interleave, torch_threads
from headrace import DataLoader, read_hdf5

N_ENTRIES, CHUNK = 30_000, 256
OURS, COLUMNS, USUAL = "headrace", "headrace, columns", "h5py dataset in torch"
BAR = 5


class UsualDataset(torch_data.Dataset[Any]):
    """An HDF5 dataset as tutorials write it."""

    def __init__(self, path: Path, n: int) -> None:
        self.path, self.n = path, n
        self.arrays: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        import h5py

        if not self.arrays:  # each keeps its own cache of chunks, as long as it is open
            file = h5py.File(self.path, "r")
            self.arrays = {name: file[name] for name in ("x", "y")}
        return {name: array[i] for name, array in self.arrays.items()}


def write(path: Path, n: int) -> None:
    import h5py

    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        x = random.integers(0, 100, (n, 64, 4)).astype(np.float32)
        file.create_dataset("x", data=x, chunks=(CHUNK, 64, 4), compression="gzip")
        file.create_dataset("y", data=np.arange(n), chunks=(CHUNK,), compression="gzip")


def run(settings: Settings) -> Report:
    if missing := missing_peers("h5py"):
        return Report([], [], missing)
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    n = 4000 if settings.quick else N_ENTRIES
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        path = Path(folder, "data.h5")
        write(path, n)
        for shuffled in (False, True):
            order = "shuffled" if shuffled else "in order"
            progress(f"[hdf5_chunks] {order}")
            streams = {OURS: read_hdf5(path), COLUMNS: read_hdf5(path, rows="columns")}
            loaders: dict[str, Any] = {
                name: DataLoader(stream.shuffle() if shuffled else stream, batch_size=BATCH, seed=0)
                for name, stream in streams.items()
            }
            loaders[USUAL] = torch_data.DataLoader(UsualDataset(path, n), batch_size=BATCH, shuffle=shuffled)
            longest_s = longest_seconds(settings)
            runs = {name: epoch_rate(loader, BATCH, longest_s) for name, loader in loaders.items()}
            found = interleave(runs, settings.repeats)
            rows += contest_rows(order, 0, found, "entries/s")
            figures = {(name, 0): own for name, own in found.items()}
            targets += [
                Target(f"{name} against {USUAL}, {order}", BAR, ratio(figures, (name, 0), (USUAL, 0)))
                for name in (OURS, COLUMNS)
            ]
    return Report(rows, targets)
