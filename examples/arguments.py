"""Arguments that exclude each other are refused with a clear error; `drop_last` drops a short batch."""

from headrace import DataLoader, IterableDataset

DATA = list(range(10))


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(DATA)


WRONG_MIXES = {
    "sampler with shuffle": {"sampler": [0, 1], "shuffle": True},
    "batch_sampler with batch_size": {"batch_sampler": [[0, 1]], "batch_size": 2},
    "batch_sampler with shuffle": {"batch_sampler": [[0, 1]], "shuffle": True},
    "batch_sampler with sampler": {"batch_sampler": [[0, 1]], "sampler": [0, 1]},
    "batch_sampler with drop_last": {"batch_sampler": [[0, 1]], "drop_last": True},
    "no batching with drop_last": {"batch_size": None, "drop_last": True},
    "a batch size of 0": {"batch_size": 0},
    "an iterable dataset with shuffle": {"dataset": Numbers(), "shuffle": True},
    "an iterable dataset with a sampler": {"dataset": Numbers(), "sampler": [0, 1]},
    "persistent_workers without workers": {"persistent_workers": True},
    "prefetch_factor without workers": {"prefetch_factor": 2},
}


def main():
    for mix, arguments in WRONG_MIXES.items():
        try:
            DataLoader(**{"dataset": DATA, **arguments})
        except ValueError as error:
            print(f"{mix}:\n  ValueError: {error}")
        else:
            raise SystemExit(f"{mix} was accepted")

    loader = DataLoader(DATA)
    print("Defaults:", f"batch_size={loader.batch_size}, drop_last={loader.drop_last}, len={len(loader)}")

    for drop_last in (False, True):
        loader = DataLoader(DATA, batch_size=4, drop_last=drop_last)
        print(f"drop_last={drop_last}: {len(loader)} batches of", [len(batch) for batch in loader])


if __name__ == "__main__":
    main()
