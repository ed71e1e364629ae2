"""Two ranks that agree when an epoch ends, which `test_agreeing.py` starts: python -m tests.agreed_ranks FOLDER

Each rank writes down what it saw of each case. In the last run, one of them is lost.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist

from headrace import DataLoader, IterableDataset, MultiStreamDataLoader, RankError, Stream, get_worker_info
from headrace.testing import FlakyDataset

LONGEST_S = 60
WORKERS = {
    "alone": {},
    "processes": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "threads": {"num_workers": 2, "engine": "threads"},
}


class Uneven(IterableDataset):
    """A user's iterable: rank 0 has 8 numbers, rank 1 has 14."""

    def __iter__(self):
        rank = dist.get_rank()
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter([100 * rank + i for i in range(first, 8 + 6 * rank, step)])


def read_block(block):
    return range(*block)


def lane(rank, number):
    def items():
        yield from range(10 * number, 10 * number + 4 + 3 * rank)

    return items


def loader_of(kind, rank, **options):
    match kind:
        case "by key":
            return DataLoader(list(range(21)), 2, shuffle=True, shard="auto", even="agree", **options)
        case "iterable":
            return DataLoader(Uneven(), 2, even="agree", **options)
        case "stream":
            stream = Stream.from_blocks([(0, 28), (28, 29)], read_block, counts=[28, 1])
            return DataLoader(stream.map(int), 2, even="agree", seed=1, **options)
        case "lanes":
            sequences = [lane(rank, number) for number in range(2)]
            return MultiStreamDataLoader(
                sequences, 2, assign="partition", cycle=False, even="agree", shard=(0, 1), **options
            )


def rows(batches):
    return [json.loads(json.dumps(as_lists(batch))) for batch in batches]


def as_lists(batch):
    if batch is None:
        return None
    return [as_lists(part) for part in batch] if isinstance(batch, (tuple, list)) else batch.tolist()


def epochs(kind, rank, options):
    """Two epochs, and the second one again from a state after two batches."""
    with loader_of(kind, rank, **options) as loader, loader_of(kind, rank, **options) as other:
        audit = loader.audit(full=True)
        first = rows(loader)
        batches = iter(loader)
        second = rows(islice(batches, 2))
        other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        second += rows(batches)
        return {
            "first": first,
            "second": second,
            "resumed": rows(other),
            "audit": audit.state_dict(),
            "state": loader.state_dict()["epoch"],
        }


def last_batch(kind, rank):
    """A state that was taken at the last batch leads all ranks to the next epoch."""
    with loader_of(kind, rank) as loader, loader_of(kind, rank) as other:
        for _ in loader:
            state = loader.state_dict()
        other.load_state_dict(state)
        return {"next": rows(other), "epoch": other.state_dict()["epoch"]}


def failure(rank, options):
    """Rank 1 raises in place of its third batch; both go on after that."""
    data = FlakyDataset(list(range(24)), bad=[9])  # the tenth, which rank 1 has
    seen = []
    with DataLoader(data, 2, shard="auto", even="agree", **options) as loader:
        batches = iter(loader)
        while True:
            try:
                seen.append(next(batches).tolist())
            except StopIteration:
                return seen
            except (RankError, ValueError) as error:
                seen.append(f"{type(error).__name__}: {error}")


def refuse_nine(rank, number):
    if (rank, number) == (1, 9):
        raise ValueError("number 9 is bad")
    return number


def failed_stream(rank, options):
    """An error ends the epoch of a stream, on all ranks; then they may begin another one."""
    stream = Stream.from_blocks([(0, 28)], read_block, counts=[28]).map(partial(refuse_nine, rank))
    seen = []
    with DataLoader(stream, 2, even="agree", seed=1, **options) as loader:
        for _ in range(2):
            try:
                seen += rows(loader)
                seen.append("the end")
            except (RankError, ValueError) as error:
                seen.append(type(error).__name__)
    return seen


def leaving(rank):
    """Rank 1 leaves after two batches; the next epoch is whole again."""
    with loader_of("by key", rank) as loader:
        first = rows(islice(loader, 2) if rank == 1 else loader)
        return {"first": first, "second": rows(loader)}


def lost(rank):
    """Rank 1 is gone after two batches."""
    with loader_of("by key", rank) as loader:
        try:
            for n, _ in enumerate(loader, 1):
                if rank == 1 and n == 2:
                    os._exit(0)
        except RankError as error:
            return {"batches": n, "error": str(error)}
    return {}


def run_rank(folder, run, rank):
    rendezvous = f"file://{folder / run}.rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=2, timeout=timedelta(seconds=LONGEST_S)
    )
    torch.set_num_threads(1)
    if run == "lost":
        results = lost(rank)
    else:
        results = {
            f"{kind}, {name}": epochs(kind, rank, options)
            for kind in ("by key", "iterable", "stream", "lanes")
            for name, options in WORKERS.items()
        }
        results |= {f"last batch, {kind}": last_batch(kind, rank) for kind in ("by key", "stream", "lanes")}
        results |= {f"failure, {name}": failure(rank, options) for name, options in WORKERS.items()}
        results |= {f"failed stream, {name}": failed_stream(rank, options) for name, options in WORKERS.items()}
        results["leaving"] = leaving(rank)
        results["cost_us"] = cost()
    (folder / f"{run}-{rank}.json").write_text(json.dumps(results))
    if run != "lost":
        dist.destroy_process_group()
    else:
        os._exit(0)


def cost():
    """What a step takes, with and without agreeing, in microseconds."""
    took = []
    for even in ("drop", "agree"):
        with DataLoader(list(range(4000)), 4, shard="auto", even=even) as loader:
            began = time.perf_counter()
            n = sum(1 for _ in loader)
            took.append(1e6 * (time.perf_counter() - began) / n)
    return took


def main(folder):
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    for run in ("cases", "lost"):
        ranks = [context.Process(target=run_rank, args=(folder, run, rank)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(2 * LONGEST_S)
        if any(process.exitcode for process in ranks) or any(process.is_alive() for process in ranks):
            raise SystemExit(f"{run}: ranks ended with {[process.exitcode for process in ranks]}; None is a hang.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
