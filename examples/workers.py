"""Workers load ahead of the loop: they take turns, and may stay from epoch to epoch.

They are processes by default, or threads.
"""

import os
import time

from headrace import DataLoader, Dataset, get_worker_info


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


class Processes(MyMapDataset):
    def __getitem__(self, index):
        return os.getpid()


class Slow(MyMapDataset):
    def __getitem__(self, index):
        time.sleep(0.02)
        return self.data[index]


def seconds_of(loader):
    """The time of a loop whose model takes as long for a batch as loading one does."""
    started = time.perf_counter()
    for _ in loader:
        time.sleep(0.08)
    return time.perf_counter() - started


def main():
    for engine in ("processes", "threads"):
        print(f"Two workers, {engine}:")
        for batch, worker_ids in DataLoader(MyMapDataset(range(16)), batch_size=4, num_workers=2, engine=engine):
            print(batch, worker_ids)

    with DataLoader(Processes(range(16)), batch_size=4, num_workers=2, persistent_workers=True) as loader:
        epochs = [{int(pid) for batch in loader for pid in batch} for _ in range(2)]
    print("Persistent workers are the same in each epoch:", epochs[0] == epochs[1])

    alone = seconds_of(DataLoader(Slow(range(40)), batch_size=4))
    ahead = seconds_of(DataLoader(Slow(range(40)), batch_size=4, num_workers=2))
    print(f"Ten batches and ten steps of 0.08 s each: {alone:.1f} s without workers, {ahead:.1f} s with two")


if __name__ == "__main__":
    main()
