"""How many JPEGs per second do two workers decode, as processes and as threads, next to torch's two processes?

Images of 256 x 256, decoded with Pillow to arrays of 256 x 256 x 3 bytes, and for comparison also resized and cropped,
which takes more than twice as long and leaves less for any loader to win; batches of 32. One dataset for all loaders.
The limit: bare processes that decode, and neither collate nor send. One intra-operation thread of torch.
"""

from __future__ import annotations

import io
import statistics
from typing import Any

import numpy as np
from PIL import Image
from torch.utils import data as torch_data

import headrace
from benchmarks.report import Report, Settings, Target, progress
from benchmarks.steady import ENDLESS, WORKER_COUNTS, bare_rate, loader_rate, stretch_of
from benchmarks.timing import interleave, median_ratio, spread, torch_threads

BATCH = 32
SIZE = 256
N_FILES = 128
TORCH, PROCESSES, THREADS, LIMIT = "torch", "headrace, processes", "headrace, threads", "limit: bare processes"


class Photographs:
    """Endless; goes round and round the files, which lie in memory."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array(self.decode(index))

    def decode(self, index: int) -> Image.Image:
        return Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")

    def __len__(self) -> int:
        return ENDLESS


class Crops(Photographs):
    """Resized, and then the middle of them."""

    def __getitem__(self, index: int) -> np.ndarray:
        image = self.decode(index)
        return np.array(image.resize((232, 232), Image.Resampling.BILINEAR).crop((4, 4, 228, 228)))


def make_files(n: int) -> list[bytes]:
    """Pictures with as much detail as photographs have, about: 20 KB each."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(n):
        coarse = Image.fromarray(rng.integers(256, size=(SIZE // 8, SIZE // 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC), np.int16)
        grainy = np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(grainy).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def run(settings: Settings) -> Report:
    files = make_files(N_FILES)
    rows: list[dict[str, Any]] = []
    for kind in (Photographs, Crops):
        for workers in WORKER_COUNTS:
            progress(f"[jpeg] {kind.__name__.lower()}, {workers} workers")
            figures = measure(kind(files), workers, settings)
            rows.extend(
                {
                    "images": kind.__name__.lower(),
                    "workers": workers,
                    "contestant": name,
                    "images/s": statistics.median(own),
                    "spread": spread(own),
                    "x torch": median_ratio(own, figures[TORCH]),
                    "x limit": median_ratio(own, figures[LIMIT]),
                }
                for name, own in figures.items()
            )
    decoded = [row for row in rows if row["images"] == "photographs"]
    by_name = {row["contestant"]: row for row in decoded if row["workers"] == 2}
    better = max(by_name[PROCESSES], by_name[THREADS], key=lambda row: row["images/s"])
    targets = [
        Target(f"2 workers against torch's ({better['contestant']})", 1.25, better["x torch"]),
        Target(f"2 workers against bare decoding ({better['contestant']})", 0.7, better["x limit"]),
        Target("2 threads against torch's 2 processes", 1.05, by_name[THREADS]["x torch"]),
    ]
    return Report(rows, targets, [f"The files have {np.mean([len(file) for file in files]):,.0f} bytes each."])


def measure(dataset: Photographs, workers: int, settings: Settings) -> dict[str, list[float]]:
    stretch = stretch_of(settings)
    loaders = {
        TORCH: torch_data.DataLoader(dataset, BATCH, num_workers=workers),
        PROCESSES: headrace.DataLoader(dataset, BATCH, num_workers=workers),
        THREADS: headrace.DataLoader(dataset, BATCH, num_workers=workers, engine="threads"),
    }
    contestants = {name: loader_rate(loader, BATCH, stretch) for name, loader in loaders.items()}

    def decode_batch() -> list[np.ndarray]:
        return [dataset[i] for i in range(BATCH)]

    contestants[LIMIT] = bare_rate(decode_batch, BATCH, workers, stretch)
    with torch_threads(1):
        return interleave(contestants, settings.repeats)
