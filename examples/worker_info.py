"""What a dataset can ask about where it runs: `get_worker_info()` tells the worker, and is None outside of workers.

The usual reason to ask: something that each worker needs for itself, such as a log file, a connection or a cache.
"""

import tempfile
from pathlib import Path

from headrace import DataLoader, Dataset, IterableDataset, get_worker_info


def worker_id():
    worker = get_worker_info()
    return worker.id if worker is not None else -1


class MyMapDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], worker_id()


class MyIterableDataset(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        for x in self.data:
            yield x, worker_id()


class Logged(MyMapDataset):
    """Each worker writes to a file of its own, opened on first use: an open file cannot be sent to a worker."""

    def __init__(self, data, folder):
        super().__init__(data)
        self.folder = folder
        self.log = None

    def __getitem__(self, index):
        if self.log is None:
            self.log = open(self.folder / f"worker-{worker_id()}.log", "w", buffering=1)  # noqa: SIM115
        self.log.write(f"{index}\n")
        return self.data[index]


def label_samples(number):
    """A `worker_init_fn` runs first in each worker, and may change this worker's copy of the dataset."""
    worker = get_worker_info()
    worker.dataset.data = [f"{sample} from worker {number} of {worker.num_workers}" for sample in worker.dataset.data]


def main():
    for dataset in (MyMapDataset(range(16)), MyIterableDataset(range(16))):
        print(f"{type(dataset).__name__}, no workers:")
        for batch, worker_ids in DataLoader(dataset, batch_size=4, num_workers=0):
            print(batch, worker_ids)

    print("Two workers, each with a log of its own:")
    with tempfile.TemporaryDirectory() as folder:
        list(DataLoader(Logged(range(8), Path(folder)), batch_size=2, num_workers=2))
        for log in sorted(Path(folder).iterdir()):
            print(f"  {log.name}: {log.read_text().split()}")

    print("Two workers that changed their copies of the dataset:")
    for samples, _ in DataLoader(MyMapDataset("abcd"), batch_size=2, num_workers=2, worker_init_fn=label_samples):
        print(f"  {samples}")


if __name__ == "__main__":
    main()
