"""The same numbers as a map-style and as an iterable dataset give the same three batches.

A map-style dataset is asked for samples by index; an iterable one only ever for the next sample.
"""

from headrace import DataLoader, Dataset, IterableDataset

DATA = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


class MyMapDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, idx):
        return self.data[idx]


class MyIterableDataset(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


def main():
    print("Map style:")
    for batch in DataLoader(MyMapDataset(DATA), batch_size=4):
        print(batch)

    print("Iterable:")
    for batch in DataLoader(MyIterableDataset(DATA), batch_size=4):
        print(batch)


if __name__ == "__main__":
    main()
