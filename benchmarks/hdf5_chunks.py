"""How fast do the entries of a chunked HDF5 file come, next to the usual h5py dataset in torch's DataLoader?

30,000 entries of 64 x 4 floats and a label, in gzip chunks of 256; batches of 256, in order and shuffled, in-process.
The usual dataset opens the file in `__getitem__` and reads `file["x"][i]`; a careful one keeps `file["x"]`, and with it
h5py's cache of chunks. In order, decompressing alone takes most of the time of the careful one and of headrace.
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
OURS, COLUMNS = "headrace", "headrace, columns"
USUAL, CAREFUL = "h5py dataset in torch", "h5py dataset in torch that keeps its arrays"
BAR = 5


class UsualDataset(torch_data.Dataset[Any]):
    """An HDF5 dataset as tutorials write it; if careful, with its arrays kept open."""

    def __init__(self, path: Path, n: int, *, is_careful: bool) -> None:
        self.path, self.n, self.is_careful = path, n, is_careful
        self.arrays: Any = None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        import h5py

        if self.arrays is None:
            file = h5py.File(self.path, "r")
            self.arrays = {name: file[name] for name in ("x", "y")} if self.is_careful else file
        return {"x": self.arrays["x"][i], "y": self.arrays["y"][i]}


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
            for name in (USUAL, CAREFUL):
                dataset = UsualDataset(path, n, is_careful=name == CAREFUL)
                loaders[name] = torch_data.DataLoader(dataset, batch_size=BATCH, shuffle=shuffled)
            longest_s = longest_seconds(settings)
            runs = {name: epoch_rate(loader, BATCH, longest_s) for name, loader in loaders.items()}
            found = interleave(runs, settings.repeats)
            rows += contest_rows(order, 0, found, "entries/s")
            figures = {(name, 0): own for name, own in found.items()}
            targets += [
                Target(f"{name} against {peer}, {order}", BAR, ratio(figures, (name, 0), (peer, 0)))
                for name in (OURS, COLUMNS)
                for peer in (USUAL, CAREFUL)
            ]
    return Report(rows, targets)
