"""Workers on other machines: the same loader, with `engine="ray"`.

Connects to the cluster that RAY_ADDRESS names, or starts Ray on this machine.
"""

from __future__ import annotations

import time

import numpy as np

from headrace import DataLoader, Dataset, RayEngine, rng


class Augmented(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01)  # decoding, tokenizing, augmenting
        return np.full(8, index, np.float32) + rng().random(8, dtype=np.float32)


def make(**options):
    return DataLoader(Augmented(), batch_size=4, shuffle=True, seed=1, output="numpy", **options)


here = [batch.copy() for batch in make(num_workers=2)]
remote = make(num_workers=4, engine=RayEngine(num_cpus=1, placement="spread"), on_worker_death="restart")
there = [batch.copy() for batch in remote]
print("the same batches:", all(np.array_equal(a, b) for a, b in zip(here, there, strict=True)))

remote.set_epoch(0)
batches = iter(remote)
head = [next(batches) for _ in range(5)]
state = remote.state_dict()
batches.close()

local = make(num_workers=2)
local.load_state_dict(state)
rest = list(local)
print("resumed on processes:", all(np.array_equal(a, b) for a, b in zip([*head, *rest], here, strict=True)))
print(remote.report())
