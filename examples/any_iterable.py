"""An iterable that does not know about workers gives each sample once, with one more word: `Stream.from_iterable`."""

import warnings

from headrace import DataLoader, IterableDataset, Stream


class MyIterableDataset(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        yield from self.data


def squared(n):
    return n * n


def main():
    dataset = MyIterableDataset(range(16))
    print("Two workers, each with its own copy:")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headrace warns, and names the cure
        with DataLoader(dataset, batch_size=4, num_workers=2) as loader:
            for batch in loader:
                print(batch)

    print("Two workers that share it:")
    stream = Stream.from_iterable(dataset, block_rows=4)
    with DataLoader(stream, batch_size=4, num_workers=2) as loader:
        for batch in loader:
            print(batch)

    print("Read once, transformed by two workers, shuffled:")
    stream = Stream.from_iterable(dataset, shard="dispatch", block_rows=4).shuffle(blocks=2).map(squared)
    with DataLoader(stream, batch_size=None, num_workers=2, seed=1) as loader:
        print(sorted(loader) == [squared(n) for n in range(16)])


if __name__ == "__main__":
    main()
