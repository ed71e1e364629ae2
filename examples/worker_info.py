"""`get_worker_info()` is None in the main process, here written as worker -1, for both kinds of dataset (M3.3)."""

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


def main():
    for dataset in (MyMapDataset(range(16)), MyIterableDataset(range(16))):
        print(f"{type(dataset).__name__}:")
        for batch, worker_ids in DataLoader(dataset, batch_size=4, num_workers=0):
            print(batch, worker_ids)


if __name__ == "__main__":
    main()
