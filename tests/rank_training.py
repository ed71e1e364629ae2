"""Small trainings with DistributedDataParallel, which `test_two_ranks.py` starts: python -m tests.rank_training FOLDER

The run "first" trains four epochs, and saves a checkpoint in the middle of the third. Others go on from it, in fresh
processes. Those are forked by a process that has done nothing but import torch, which takes longer than all the rest.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # as DistributedDataParallel does, later
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from headrace import (
    BatchOrderSampler,
    BucketBatchSampler,
    DataLoader,
    Dataset,
    WeightedRandomSampler,
    pad_collate,
)
from headrace.insight.audit import Audit

N = 203
EPOCHS = 4
RUNS = {"first": 2, "again": 2, "on three": 3}  # and their numbers of ranks
LONGEST_S = 30  # that a rank waits for another
STOP = (2, 5)  # epoch, and batches of it
LENGTHS = np.random.default_rng(0).integers(1, 40, N)
WEIGHTS = np.random.default_rng(1).random(N)


class Sentences(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return np.full(LENGTHS[index], index, dtype=np.float32)


class BucketsOfDraws:
    """The batches of a bucket sampler, over samples that were drawn by weight."""

    def __init__(self, draws, buckets):
        self.draws = draws
        self.buckets = buckets

    def __len__(self):
        return len(self.buckets)

    def batch(self, number):
        return self.draws.at(self.buckets.batch(number))


class WeightedBuckets(BatchOrderSampler):
    def seeded(self, seed, epoch):
        draws = WeightedRandomSampler(WEIGHTS, N).seeded(seed, epoch)
        lengths = LENGTHS[draws.at(np.arange(N))]
        return BucketsOfDraws(draws, BucketBatchSampler(lengths, max_tokens=120, window=50).seeded(seed, epoch))


SAMPLERS = {
    "weighted": lambda: {"sampler": WeightedRandomSampler(WEIGHTS, N), "batch_size": 6},
    "bucketed": lambda: {"batch_sampler": BucketBatchSampler(LENGTHS, max_tokens=120, window=50)},
    "weighted buckets": lambda: {"batch_sampler": WeightedBuckets()},
}


def make_loader(kind, rank):
    workers = {"num_workers": 2, "engine": "threads"} if rank % 2 else {}  # ranks need not be alike
    return DataLoader(Sentences(), seed=7, shard="auto", collate_fn=pad_collate(), **workers, **SAMPLERS[kind]())


def train(kind, rank, checkpoint):
    """Returns the keys of each batch by epoch, and the audits of all ranks."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    saved, seen = None, {}
    with make_loader(kind, rank) as loader:
        audit = loader.audit(full=True)
        if checkpoint is not None:
            loader.load_state_dict(checkpoint["loader"])
        start = 0 if checkpoint is None else STOP[0]
        for epoch in range(start, EPOCHS):
            keys = seen[epoch] = []
            for tokens, _ in loader:
                optimizer.zero_grad()
                model(tokens.mean(dim=1, keepdim=True)).sum().backward()  # waits for all ranks
                optimizer.step()
                keys.append(tokens[:, 0].int().tolist())
                if checkpoint is None and (epoch, len(keys)) == STOP:
                    saved = {"loader": loader.state_dict(), "audits": gather(audit.state_dict())}
    return seen, gather(audit.state_dict()), saved


def gather(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def run_rank(folder, run, rank, world):
    """The whole life of one rank."""
    rendezvous = f"file://{folder / run}.rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(seconds=LONGEST_S)
    )
    torch.set_num_threads(1)
    results = {}
    for kind in SAMPLERS:
        path = folder / f"{kind}.json"
        checkpoint = None if run == "first" else json.loads(path.read_text())
        seen, audits, saved = train(kind, rank, checkpoint)
        whole = Audit.merged([*(checkpoint["audits"] if checkpoint else []), *audits])
        whole.check()
        results[kind] = {"seen": seen, "proven": whole.proven, "report": whole.report()}
        if saved is not None and rank == 0:
            path.write_text(json.dumps(saved))
    (folder / f"{run}-{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def run_all_ranks(folder, run, world):
    """Start fresh processes, all at once, and see that they end by themselves."""
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    ranks = [context.Process(target=run_rank, args=(folder, run, rank, world), daemon=True) for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(2 * LONGEST_S)
    if any(rank.exitcode for rank in ranks) or any(rank.is_alive() for rank in ranks):
        raise SystemExit(f"{run}: ranks ended with {[rank.exitcode for rank in ranks]}; None is a hang.")


if __name__ == "__main__":
    for run, world in RUNS.items():
        run_all_ranks(Path(sys.argv[1]), run, world)
