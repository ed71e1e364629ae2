"""Sequences of different lengths: a clear error by default, a padded batch with `pad_collate`."""

import numpy as np

from headrace import CollateError, DataLoader, Dataset, pad_collate


class VariableLengthDataset(Dataset):
    """Sequences of (length, features)."""

    def __init__(self, lengths):
        random = np.random.default_rng(0)
        self.data = [random.standard_normal((length, 2), dtype=np.float32) for length in lengths]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, idx):
        return self.data[idx]


def main():
    dataset = VariableLengthDataset([3, 5, 2])
    print("Samples:", ", ".join(str(sample.shape) for sample in dataset))

    print("Without a collate_fn:")
    try:
        next(iter(DataLoader(dataset, batch_size=3)))
    except CollateError as error:
        print(f"  {type(error).__name__}: {error}")

    print("With pad_collate(sort=True), longest first:")
    values, lengths = next(iter(DataLoader(dataset, batch_size=3, collate_fn=pad_collate(sort=True))))
    print("  shape:", tuple(values.shape))
    print("  lengths:", lengths.tolist())
    print(values)

    print("Each batch is padded to its own longest sequence, not to the longest of all:")
    for values, lengths in DataLoader(VariableLengthDataset([3, 5, 2, 1]), batch_size=2, collate_fn=pad_collate()):
        print("  shape:", tuple(values.shape), "lengths:", lengths.tolist())


if __name__ == "__main__":
    main()
