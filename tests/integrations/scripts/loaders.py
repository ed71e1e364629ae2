"""The loaders that trainers are given here: 24 numbers, in batches of 3."""

from __future__ import annotations

import torch.utils.data as torch_data

import headrace

N, SIZE = 24, 3


def read_block(block):
    return range(*block)


def stream():
    blocks = [(i, i + 4) for i in range(0, N, 4)]
    return headrace.Stream.from_blocks(blocks, read_block, counts=[4] * len(blocks)).shuffle()


def make(kind, workers):
    options = {"batch_size": SIZE, "num_workers": int(workers)}
    match kind:
        case "torch":
            return torch_data.DataLoader(range(N), shuffle=True, **options)
        case "plain":
            return headrace.DataLoader(range(N), shuffle=True, **options)
        case "in order":
            return headrace.DataLoader(range(N), **options)
        case "torch with our sampler":
            return torch_data.DataLoader(range(N), sampler=headrace.DistributedSampler(range(N)), **options)
        case "seed":
            return headrace.DataLoader(range(N), shuffle=True, seed=3, **options)
        case "seed, in order":
            return headrace.DataLoader(range(N), seed=3, **options)
        case "shard":
            return headrace.DataLoader(range(N), shuffle=True, shard="auto", **options)
        case "stream":
            return headrace.DataLoader(stream(), seed=3, **options)
        case "mix":
            streams = [stream(), stream().map(negative)]
            return headrace.DataLoader(headrace.mix(streams, [2, 1], stop="all"), seed=3, **options)
        case "lanes":
            sequences = [[i, i + 6, i + 12, i + 18] for i in range(6)]
            return headrace.MultiStreamDataLoader(
                sequences, 6, assign="partition", cycle=False, shard="auto", num_workers=int(workers)
            )
        case "stream in torch":
            return torch_data.DataLoader(stream(), **options)
    raise ValueError(kind)


def negative(i):
    return -1 - i


def rows(batch):
    batch = batch[0] if isinstance(batch, (tuple, list)) else batch
    return batch.reshape(-1).tolist()
