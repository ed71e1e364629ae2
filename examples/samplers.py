"""Sequential, random and weighted order; classes of 8 and 2 samples are drawn about equally."""

import numpy as np

from headrace import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    class_weights,
)

DATA = np.arange(10, dtype=np.float32)
LABELS = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1])


def print_epochs(title, loader):
    print(title)
    for epoch in (1, 2):
        print(f"  Epoch {epoch}:", *([int(x) for x in batch] for batch, _ in loader))


def orders():
    dataset = TensorDataset(DATA, LABELS)
    print_epochs("shuffle=False: always the same order", DataLoader(dataset, batch_size=2))
    print_epochs("SequentialSampler", DataLoader(dataset, batch_size=2, sampler=SequentialSampler(dataset)))
    print_epochs("shuffle=True: another order each epoch", DataLoader(dataset, batch_size=2, shuffle=True))
    print_epochs("RandomSampler", DataLoader(dataset, batch_size=2, sampler=RandomSampler(dataset)))
    print_epochs("Any iterable of indices", DataLoader(dataset, batch_size=2, sampler=[9, 7, 5]))
    print_epochs("A batch_sampler: whole batches of indices", DataLoader(dataset, batch_sampler=[(0, 9), (4, 5, 6)]))


def balanced_classes():
    weights = class_weights(LABELS)
    print("Samples per class:", np.bincount(LABELS))
    print("Weight of each sample:", weights)

    generator = np.random.default_rng(0)  # torch's would do as well; without one, every run draws anew
    sampler = WeightedRandomSampler(weights, num_samples=len(weights), replacement=True, generator=generator)
    loader = DataLoader(TensorDataset(DATA, LABELS), batch_size=4, sampler=sampler)
    print("--- WeightedRandomSampler ---")
    for epoch in (1, 2):
        print(f"Epoch {epoch}:")
        drawn = np.zeros(2, dtype=int)
        for data, label in loader:
            print(f"  Data: {np.asarray(data)}, Label: {np.asarray(label)}")
            drawn += np.bincount(np.asarray(label), minlength=2)
        print("  -> drawn per class:", drawn)

    counts = sum(np.bincount(np.asarray(label), minlength=2) for _ in range(1000) for _, label in loader)
    print("Over 1000 epochs: {:.0%} and {:.0%}".format(*counts / counts.sum()))


def main():
    orders()
    balanced_classes()


if __name__ == "__main__":
    main()
