"""Where the time goes (M1.7, M2.3, M5.4, M5.9): the same slow samples without workers, and with two.

Writes a timeline to look at in a browser and, if matplotlib is there, a picture: to a folder given on the command line,
else to a temporary one.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path

from headrace import DataLoader, Dataset, get_worker_info, plot_timings

SAMPLE_S, STEP_S = 0.01, 0.02


class SlowNumbers(Dataset):
    """Each sample takes a while, and tells which worker made it."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        worker = get_worker_info()
        time.sleep(SAMPLE_S)
        return self.data[index], -1 if worker is None else worker.id


def train(loader):
    for _ in loader:
        time.sleep(STEP_S)


def main(folder: Path) -> None:
    for num_workers in (0, 2):
        with DataLoader(SlowNumbers(range(65)), batch_size=4, num_workers=num_workers) as loader:
            train(loader)
            report = loader.report()
            print(f"{num_workers} workers, {report.stats['batches']} batches, bottleneck: {report.bottleneck}")
            print(f"  {report.verdict}")
            page = folder / f"timeline-{num_workers}-workers.html"
            loader.timeline(page)
            print(f"  timeline: {page.name}")
            if importlib.util.find_spec("matplotlib") is not None:
                picture = folder / f"timings-{num_workers}-workers.png"
                plot_timings(loader, model_time=STEP_S, n_batches=4, path=picture)
                print(f"  picture: {picture.name}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
