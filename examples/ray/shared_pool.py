"""Training and validation share the actors of one pool, so validation need not start workers of its own."""

from __future__ import annotations

from headrace import DataLoader, RayPool

with RayPool(workers=2, num_cpus=1) as pool:
    train = DataLoader(range(96), batch_size=8, shuffle=True, seed=0, engine=pool)
    validate = DataLoader(range(48), batch_size=8, engine=pool)
    validated = []
    for _ in range(3):
        for _batch in train:
            pass
        validated.append(sum(len(batch) for batch in validate))
assert set(validated) == {48}
print("validated", len(validated), "times,", validated[0], "samples each")
