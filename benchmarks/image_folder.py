"""How fast do images come from folders of JPEG files, next to torchvision's ImageFolder idiom with Pillow?

600 files of 320 x 240 pixels in 10 classes, all decoded with Pillow; batches of 32, in order, 0 and 2 workers. The peer
is what torchvision's ImageFolder does: a list of paths, `Image.open(...).convert("RGB")`, pixels as a uint8 tensor,
torch's DataLoader. headrace decodes with one thread, and with two within its only process or each worker.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from benchmarks.report import Report, Settings, Target, progress
from benchmarks.streams_rates import contest_rows, epoch_rate, longest_seconds, missing_peers, ratio, with_workers
from benchmarks.timing import interleave, torch_threads
from headrace import DataLoader, read_images

N_FILES, N_CLASSES, SIZE, BATCH = 600, 10, (320, 240), 32
ONE, TWO, PEER = "headrace", "headrace, threads=2", "torchvision's idiom"
BAR = 1.2


class PillowFolder(torch_data.Dataset[Any]):
    """torchvision's ImageFolder, with PILToTensor."""

    def __init__(self, root: Path) -> None:
        classes = sorted(path.name for path in root.iterdir())
        self.samples = [(str(path), i) for i, name in enumerate(classes) for path in sorted((root / name).iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        path, label = self.samples[i]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        return torch.as_tensor(np.array(image, copy=True)).permute(2, 0, 1), label


def write(root: Path, n: int) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for i in range(n):
        folder = root / f"class{i % N_CLASSES}"
        folder.mkdir(exist_ok=True)
        small = random.integers(0, 255, (24, 32, 3), np.uint8)
        Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC).save(folder / f"{i:05}.jpg", quality=90)


def run(settings: Settings) -> Report:
    if missing := missing_peers("PIL"):
        return Report([], [], missing)
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        root = Path(folder)
        write(root, 100 if settings.quick else N_FILES)
        for workers in (0, 2):
            progress(f"[image_folder] {workers} workers")
            options = {"batch_size": BATCH, **with_workers(workers)}
            loaders: dict[str, Any] = {
                ONE: DataLoader(read_images(root, block_bytes=1 << 20), **options),
                TWO: DataLoader(read_images(root, threads=2, block_bytes=1 << 20), **options),
                PEER: torch_data.DataLoader(PillowFolder(root), **options),
            }
            runs = {name: epoch_rate(loader, BATCH, longest_seconds(settings)) for name, loader in loaders.items()}
            found = interleave(runs, settings.repeats)
            rows += contest_rows("jpeg", workers, found, "images/s")
            figures = {(name, workers): own for name, own in found.items()}
            best = max(ratio(figures, (name, workers), (PEER, workers)) for name in (ONE, TWO))
            targets.append(Target(f"the quicker of both against {PEER}, {workers} workers", BAR, best))
    return Report(rows, targets)
