"""A training that is stopped in the middle of an epoch goes on with exactly the next batch: with other workers, too."""

import json
import random
import tempfile
from pathlib import Path

import numpy as np

from headrace import DataLoader, Dataset, rng

N = 12


class Pictures(Dataset):
    """Augments at random, in two ways: both are repeatable with a seed."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        flipped = random.random() < 0.5  # whatever code uses the global generators
        noise = rng().normal()  # a generator of this sample's own; the one to use in threads
        return index, flipped, noise


def make_loader(**options):
    return DataLoader(Pictures(), shuffle=True, seed=7, **{"batch_size": 2, **options})


def listed(batches):
    """Plain values of all samples, batch by batch."""
    return [[np.asarray(part).tolist() for part in batch] for batch in batches]


def indices(batches):
    return [index for batch in batches for index in batch[0]]


def train_until(step, path):
    loader = make_loader()
    for batch in loader:
        print("  step", *(int(index) for index in batch[0]))
        step -= 1
        if step == 0:
            path.write_text(json.dumps(loader.state_dict()))
            return


def main():
    undisturbed = [listed(loader) for loader in [make_loader()] * 2]
    print("The same seed, two epochs:", *(indices(epoch) for epoch in undisturbed))
    with make_loader(num_workers=2) as loader:
        print("Two workers give the same, augmentations too:", [listed(loader) for _ in range(2)] == undisturbed)

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "checkpoint.json")
        print("Stopped after two steps of the first epoch:")
        train_until(2, checkpoint)
        state = json.loads(checkpoint.read_text())
    print("The state is small:", len(json.dumps(state)) < 500)

    with make_loader(num_workers=2) as loader:
        loader.load_state_dict(state)
        print("Gone on, with two workers:", *indices(listed(loader)))
        loader.load_state_dict(state)
        print("The same batches as without the stop:", listed(loader) == undisturbed[0][2:])
        print("and so in the next epoch:", listed(loader) == undisturbed[1])

    larger = make_loader(batch_size=4)
    larger.load_state_dict(state)
    print("Larger batches go on with the same sample:", *(batch[0] for batch in listed(larger)))
    larger.seek(2)
    print("Straight to batch 2:", *(batch[0] for batch in listed(larger)))


if __name__ == "__main__":
    main()
