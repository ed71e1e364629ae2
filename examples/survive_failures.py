"""A bad sample, or a worker that is killed, need not end the training: skip the one, restart the other."""

import os
import signal
import tempfile
import warnings
from pathlib import Path

from headrace import DataLoader, Dataset


class Pictures(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5:
            raise ValueError(f"picture {index} is broken")
        return index


class Dying(Dataset):
    """Its worker is killed at one sample, once: as if memory had run out."""

    def __init__(self, marker):
        self.marker = marker

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def print_batches(loader):
    """All batches, then what was warned of meanwhile, in short."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in loader:
            print(batch)
    for warning in caught:
        print("  Warning:", str(warning.message).partition(". ")[0])


def main():
    print("By default an error is raised in its turn, and tells where it was:")
    iterator = iter(DataLoader(Pictures(), batch_size=4, num_workers=2))
    print(next(iterator))
    try:
        next(iterator)
    except ValueError as error:
        print(f"  ValueError: {error}")
        where = str(error.__cause__).splitlines()[0]
        print("  worker, batch and sample are named:", "worker process 1" in where and "batch 1, sample 5" in where)
    print(next(iterator))

    print('on_error="skip" leaves the sample out:')
    loader = DataLoader(Pictures(), batch_size=4, num_workers=2, on_error="skip", max_errors=3)
    print_batches(loader)
    for bad in loader.errors:
        print(f"  sample {bad.key} of batch {bad.batch}, in worker {bad.worker}: {bad.error}")

    print('on_worker_death="restart" does the work again:')
    with tempfile.TemporaryDirectory() as folder:
        dataset = Dying(Path(folder) / "died")
        print_batches(DataLoader(dataset, batch_size=4, num_workers=2, on_worker_death="restart"))
        print("  a worker was killed:", dataset.marker.exists())


if __name__ == "__main__":
    main()
