"""The loaders that trainers are given here: 24 rows, in batches of 3."""

from __future__ import annotations

import torch
import torch.utils.data as torch_data

import headrace

N, SIZE = 24, 3

# Loaders that give every rank its own part by themselves.
DEALT = ("shard", "stream", "mix", "packed", "lanes")


def n_batches(kind, ranks):
    """Of an epoch, on each rank."""
    return 4 if kind == "lanes" else {"mix": 16, "packed": 4}.get(kind, 8) // ranks


def read_block(block):
    return range(*block)


def stream(known=True):
    blocks = [(i, i + 4) for i in range(0, N, 4)]
    return headrace.Stream.from_blocks(blocks, read_block, counts=[4] * len(blocks) if known else None).shuffle()


def mixed():
    """Twice as many of the first as of the second, which are negative."""
    return headrace.mix([stream(), stream().map(negative)], [2, 1], stop="all")


def make(kind, workers=0, **options):
    options = {"batch_size": SIZE, "num_workers": workers, **options}
    match kind:
        case "torch":
            return torch_data.DataLoader(range(N), shuffle=True, **options)
        case "torch, in order":
            return torch_data.DataLoader(range(N), **options)
        case "plain":
            return headrace.DataLoader(range(N), shuffle=True, **options)
        case "in order":
            return headrace.DataLoader(range(N), **options)
        case "torch with our sampler":
            return torch_data.DataLoader(range(N), sampler=headrace.DistributedSampler(range(N)), **options)
        case "seed":
            return headrace.DataLoader(range(N), shuffle=True, seed=3, **options)
        case "shard":
            return headrace.DataLoader(range(N), shuffle=True, shard="auto", **options)
        case "stream":
            return headrace.DataLoader(stream(), seed=3, **options)
        case "unsized":
            return headrace.DataLoader(stream(known=False), seed=3, **options)
        case "mix":
            return headrace.DataLoader(mixed(), seed=3, **options)
        case "packed":
            packed = stream().map(one_token).pack(2)
            return headrace.DataLoader(packed, seed=3, **{"collate_fn": as_matrix, **options})
        case "lanes":
            sequences = [[i, i + 6, i + 12, i + 18] for i in range(6)]
            return headrace.MultiStreamDataLoader(
                sequences, 6, assign="partition", cycle=False, shard="auto", num_workers=workers
            )
        case "stream in torch":
            return torch_data.DataLoader(stream(), **options)
    raise ValueError(kind)


def negative(i):
    return -1 - i


def as_matrix(packed_rows):
    return torch.as_tensor([list(row) for row in packed_rows])


def one_token(i):
    return [i]


def rows(batch):
    if isinstance(batch, dict):
        batch = next(iter(batch.values()))
    batch = batch[0] if isinstance(batch, (tuple, list)) else batch
    return batch.reshape(-1).tolist()
