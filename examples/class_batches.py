"""Batches of four people with three pictures each, as losses that compare pictures need them."""

import numpy as np

from headrace import ClassBatchSampler, DataLoader, Dataset


class Pictures(Dataset):
    """Ten people; some have many pictures, some few."""

    def __init__(self):
        self.people = np.repeat(np.arange(10), [9, 3, 12, 5, 7, 2, 8, 4, 6, 10])

    def __len__(self):
        return len(self.people)

    def __getitem__(self, index):
        person = self.people[index]
        return {"picture": np.full((8, 8), index, dtype=np.float32), "person": person}


def main():
    pictures = Pictures()
    sampler = ClassBatchSampler(pictures.people, classes_per_batch=4, samples_per_class=3)
    loader = DataLoader(pictures, batch_sampler=sampler)

    print(f"{len(pictures)} pictures, {len(loader)} batches")
    times = np.zeros(10, dtype=int)
    for batch in loader:
        people = np.asarray(batch["person"]).reshape(4, 3)
        pictures_of = np.asarray(batch["picture"])[:, 0, 0].astype(int).reshape(4, 3)
        groups = zip(people[:, 0], pictures_of.tolist(), strict=True)
        print("  " + "   ".join(f"person {person}: {group}" for person, group in groups))
        times[people[:, 0]] += 1
    print("Everybody comes equally often, at most one time apart:", np.ptp(times) <= 1)

    print("Person 5 has two pictures only. With small_classes='drop', nobody is shown twice in a batch:")
    sampler = ClassBatchSampler(pictures.people, 4, 3, small_classes="drop", batches_per_epoch=100)
    batches = [np.asarray(batch) for batch in sampler]
    print("  person 5 comes:", any(5 in pictures.people[batch] for batch in batches))
    print("  a picture comes twice in a batch:", any(len(set(batch)) < 12 for batch in batches))


if __name__ == "__main__":
    main()
