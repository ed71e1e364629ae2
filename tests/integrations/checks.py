"""What rows ranks must have seen."""

from __future__ import annotations

from tests.integrations.scripts.loaders import N


def everything(kind):
    """All rows of an epoch."""
    return sorted([*range(N), *(-1 - i for i in range(N))]) if kind == "mix" else list(range(N))


def batches_of(one, epoch):
    """Of what one rank saw: batches with the number of their epoch, and a weight."""
    return [batch for at, batch in one[0] if at == epoch]


def rows_of(ranks, epoch):
    return [row for one in ranks for batch in batches_of(one, epoch) for row in batch]
