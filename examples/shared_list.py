"""Millions of small objects: workers that read a plain list copy it page by page; they share a `SharedList`."""

import time
import warnings

from headrace import DataLoader, Dataset, SharedList

N = 200_000


class Labelled(Dataset):
    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.labels[index]["box"][0]


def make_labels():
    return ({"path": f"images/{i:08}.jpg", "box": (i, i + 1, i + 2, i + 3)} for i in range(N))


def private_megabytes():
    """How much memory this worker has for itself alone. Linux only."""
    try:
        with open("/proc/self/smaps_rollup") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("Private")) / 1024
    except OSError:
        return float("nan")


class Measured(Labelled):
    """Reads all labels, then gives the memory that this has cost, as one sample."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        before = private_megabytes()
        for place in range(len(self.labels)):
            self.labels[place]
        return private_megabytes() - before


def main():
    started = time.perf_counter()
    shared = SharedList(make_labels())
    print(f"{shared!r}, packed in {time.perf_counter() - started:.1f} s")
    print("The first:", shared[0], "The last:", shared[-1]["path"])

    batches = DataLoader(Labelled(shared), batch_size=1000, shuffle=True, num_workers=2)
    print("Sum over all samples:", sum(int(batch.sum()) for batch in batches), "expected:", N * (N - 1) // 2)

    for labels in (list(make_labels()), shared):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (megabytes,) = DataLoader(Measured(labels), batch_size=None, num_workers=1)
        print(f"{type(labels).__name__}: a worker that reads it all needs {megabytes:.0f} MB more")
        for warning in caught:
            print("  Warning:", warning.message)


if __name__ == "__main__":
    main()
