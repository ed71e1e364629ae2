"""A loader that calls back for every item: `collate_fn` without batching.

With `batch_size=None` the loader hands each sample to `collate_fn` by itself and delivers what it returns.
"""

from headrace import DataLoader, Dataset


class CustomDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def custom_callback(data):
    print(f"{data} 입니다.")  # "It is {data}."
    return data


def main():
    loader = DataLoader(CustomDataset([1, 2, 3, 4, 5]), batch_size=None, collate_fn=custom_callback)
    for item in loader:
        print(item)


if __name__ == "__main__":
    main()
