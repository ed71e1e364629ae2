"""A list of sequences chained into one endless stream; the first eight batches of it."""

from itertools import chain, cycle, islice

from headrace import DataLoader, IterableDataset

DATA_LIST = [
    [12, 13, 14, 15, 16, 17],
    [27, 28, 29],
    [31, 32, 33, 34, 35, 36, 37, 38, 39],
    [40, 41, 42, 43],
]


class MyIterableDataset(IterableDataset):
    def __init__(self, data_list):
        self.data_list = data_list

    def process_data(self, data):
        yield from data

    def get_stream(self, data_list):
        return chain.from_iterable(map(self.process_data, cycle(data_list)))

    def __iter__(self):
        return self.get_stream(self.data_list)


def main():
    loader = DataLoader(MyIterableDataset(DATA_LIST), batch_size=4)
    for batch in islice(loader, 8):
        print(batch)


if __name__ == "__main__":
    main()
