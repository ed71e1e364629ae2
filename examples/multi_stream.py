"""Batches for models that keep a state: position i of each batch goes on where position i of the last one stopped."""

import random
from itertools import chain, cycle, islice

from headrace import IterableDataset, MultiStreamDataLoader, MultiStreamDataset

DATA_LIST = [
    [12, 13, 14, 15, 16, 17],
    [27, 28, 29],
    [31, 32, 33, 34, 35, 36, 37, 38, 39],
    [40, 41, 42, 43],
]


class MyIterableDataset(IterableDataset):
    """The streams of one worker, side by side, written by hand."""

    def __init__(self, data_list, batch_size):
        self.data_list = data_list
        self.batch_size = batch_size

    def get_stream(self):
        return chain.from_iterable(cycle(random.sample(self.data_list, len(self.data_list))))

    def __iter__(self):
        return zip(*[self.get_stream() for _ in range(self.batch_size)], strict=False)

    @classmethod
    def split_datasets(cls, data_list, batch_size, max_workers):
        num_workers = next(n for n in range(max_workers, 0, -1) if batch_size % n == 0)
        return [cls(data_list, batch_size // num_workers) for _ in range(num_workers)]


def columns(loader, n):
    """What each position gets in n steps."""
    with loader:
        steps = [[int(item) for item in batch] for batch in islice(loader, n)]
    return list(zip(*steps, strict=True))


def print_columns(loader, n=12):
    for number, position in enumerate(columns(loader, n)):
        print(f"  position {number}:", *position)


def main():
    print("Every position reads all sequences, in its own order:")
    print_columns(MultiStreamDataLoader(DATA_LIST, batch_size=4))

    print("The sequences are dealt out, so that all have about as much to read:")
    print_columns(MultiStreamDataLoader(DATA_LIST, batch_size=3, assign="partition"))

    print("One long sequence, from different offsets:")
    print_columns(MultiStreamDataLoader(range(100, 130), batch_size=4, assign="offset"))

    expected = columns(MultiStreamDataLoader(DATA_LIST, batch_size=5), 100)
    for workers in (1, 2):
        loader = MultiStreamDataLoader(DATA_LIST, batch_size=5, num_workers=workers)
        print(f"{workers} workers, the same batches:", columns(loader, 100) == expected)

    print("Chunks of 4 steps, with what follows, and where sequences begin:")
    loader = MultiStreamDataLoader(DATA_LIST, batch_size=2, seq_len=4, targets=True, is_first=True)
    batch = next(iter(loader))
    for name in ("data", "targets", "is_first"):
        print(f"  {name}:", getattr(batch, name).tolist())

    print("A dataset that is split over workers:")
    for kind in (MyIterableDataset, MultiStreamDataset):
        datasets = kind.split_datasets(DATA_LIST, batch_size=4, max_workers=3)
        with MultiStreamDataLoader(datasets) as loader:
            sizes = [dataset.batch_size for dataset in datasets]
            print(f"  {kind.__name__}, parts of {sizes}:", *islice(loader, 3))


if __name__ == "__main__":
    main()
