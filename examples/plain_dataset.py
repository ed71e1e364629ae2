"""A dataset with only `__getitem__` works in `iter`, `next`, list comprehensions and `map`."""

from headrace import Dataset


class CustomDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        return self.data[index]


def main():
    dataset = CustomDataset([1, 2, 3, 4, 5])

    samples = iter(dataset)
    print(next(samples))
    print(next(samples))

    print([sample for sample in dataset])  # noqa: C416 (a comprehension is what is shown)

    for sample in map(lambda x: x + 1, dataset):  # noqa: C417 (so is map)
        print(sample)


if __name__ == "__main__":
    main()
