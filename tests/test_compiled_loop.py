"""A training loop inside `torch.compile`: the same batches as without, from every kind of loader."""

from __future__ import annotations

import pytest

from headrace import DataLoader, MultiStreamDataLoader, Stream
from tests.needs import needs_torch

pytestmark = needs_torch

DATA = list(range(12))


def read_block(block):
    return range(*block)


KINDS = {
    "keys": lambda **options: DataLoader(DATA, 3, shuffle=True, seed=1, **options),
    "torch's order": lambda **options: DataLoader(DATA, 3, **options),
    "stream": lambda **options: DataLoader(
        Stream.from_blocks([(0, 4), (4, 8), (8, 12)], read_block, counts=[4, 4, 4]).shuffle(), 3, seed=1, **options
    ),
    "lanes": lambda **options: MultiStreamDataLoader([[i, i + 6] for i in range(6)], 3, cycle=True, **options),
}


def steps(loader):
    sums = []
    for batch, _ in zip(loader, range(4), strict=False):
        sums.append((batch.float() * 2).sum().item())
    return sums


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_loop_gets_the_same_batches(kind, workers):
    import torch

    with KINDS[kind](num_workers=workers) as loader:
        expected = steps(loader)
    with KINDS[kind](num_workers=workers) as loader:
        assert torch.compile(steps, backend="eager")(loader) == expected
