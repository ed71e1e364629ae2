"""A stream with two workers comes twice, and headrace says so. The cure: each worker reads its own part."""

import itertools
import warnings

from headrace import DataLoader, IterableDataset, get_worker_info


class MyIterableDataset(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


class SharedOut(MyIterableDataset):
    """The cure that the warning names."""

    def __iter__(self):
        samples = iter(self.data)
        info = get_worker_info()
        return samples if info is None else itertools.islice(samples, info.id, None, info.num_workers)


def cut_data(worker):
    """Another cure: the data of this worker's copy, in one piece. No tail is lost, whatever the length."""
    info = get_worker_info()
    n = len(info.dataset.data)
    info.dataset.data = info.dataset.data[n * worker // info.num_workers : n * (worker + 1) // info.num_workers]


def main():
    print("Every worker iterates over its own copy:")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in DataLoader(MyIterableDataset(range(16)), batch_size=4, num_workers=2):
            print(batch)
    for warning in caught:
        print("Warning:", warning.message)

    print("Cut by a worker_init_fn:")
    for batch in DataLoader(MyIterableDataset(range(16)), batch_size=4, num_workers=2, worker_init_fn=cut_data):
        print(batch)

    print("Shared out in __iter__:")
    for batch in DataLoader(SharedOut(range(16)), batch_size=4, num_workers=2):
        print(batch)

    loaders = {
        "cut": DataLoader(MyIterableDataset(range(17)), batch_size=4, num_workers=2, worker_init_fn=cut_data),
        "shared out": DataLoader(SharedOut(range(17)), batch_size=4, num_workers=2),
    }
    for name, loader in loaders.items():
        found = sorted(int(x) for batch in loader for x in batch)
        print(f"17 samples, {name}: each comes once: {found == list(range(17))}")


if __name__ == "__main__":
    main()
