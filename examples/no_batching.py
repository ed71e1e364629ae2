"""Batching off: `batch_size=None` delivers single samples, and `collate_fn` gets one sample at a time."""

import numpy as np

from headrace import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"x": index, "square": np.array([index**2])}


def main():
    print("Arrays are converted, everything else stays as it is:")
    for sample in DataLoader(Squares(), batch_size=None):
        print(sample)

    print("A collate_fn per sample, in the order of a sampler:")
    loader = DataLoader(Squares(), batch_size=None, sampler=[3, 1], collate_fn=lambda sample: sample["x"] * 10)
    for sample in loader:
        print(sample)

    print("Whole batches from the dataset itself, one list of indices each:")
    rows = np.arange(12).reshape(6, 2)
    for batch in DataLoader(rows, batch_size=None, sampler=[[0, 1], [5, 4]]):
        print(batch)


if __name__ == "__main__":
    main()
