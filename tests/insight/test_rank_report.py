"""The report over all ranks names what holds them up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace import DataLoader, RankReport
from tests.needs import needs_torch


def stats(rank: int, wait: float, node: str = "a", works: tuple[float, ...] = (0.01, 0.01)) -> dict:
    """Of 100 batches of a rank that waits so long for each, and whose workers take so long for each."""
    workers = [
        {"worker": i, "batches": 50, "fetch_seconds": 50 * seconds, "collate_seconds": 0.0, "pack_seconds": 0.0}
        for i, seconds in enumerate(works)
    ]
    return {
        "rank": rank,
        "node": node,
        "waited": wait / (wait + 0.1),
        "samples_per_second": 100.0,
        "batch_seconds": {"wait": wait, "pin": 0.0, "step": 0.1},
        "workers": workers,
        "verdict": "Fetching is slow.",
    }


def test_the_slow_rank_and_its_slow_worker_are_named():
    found = RankReport([stats(2, 0.05, works=(0.01, 0.09)), stats(0, 0.001), stats(1, 0.002)])
    assert (found.slow_rank, found.slow_node, found.slow_worker) == (2, None, 1)
    assert found.verdict.startswith("Rank 2 on node a holds up the others: it waits 50 ms for each batch")
    assert "Its worker 1 takes 90 ms" in found.verdict
    assert [line.split()[0] for line in str(found).splitlines()[4:]] == ["0", "1", "2"]
    assert "2 *" in str(found)
    assert "<table" in found._repr_html_()


def test_a_slow_node_is_named():
    found = RankReport([stats(0, 0.001), stats(1, 0.002), stats(2, 0.05, "b"), stats(3, 0.06, "b")])
    assert (found.slow_rank, found.slow_node, found.slow_worker) == (3, "b", None)
    assert "All ranks of node b are slow" in found.verdict


def test_even_ranks_are_not_blamed():
    found = RankReport([stats(0, 0.010), stats(1, 0.012)])
    assert found.slow_rank is None
    assert found.verdict.startswith("No rank holds up the others")


def test_tiny_waits_are_not_blamed():
    assert RankReport([stats(0, 1e-6), stats(1, 1e-5)]).slow_rank is None


def test_one_rank_alone():
    loader = DataLoader(range(40), 4, output="numpy")
    list(loader)
    found = loader.report(ranks=True)
    assert found.slow_rank is None
    assert found.verdict.startswith("There is one rank only.")


RANKS = """
import sys, time
import torch.distributed as dist
from headrace import DataLoader
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

class Data:
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep(0.2 * rank)
        return index

with DataLoader(Data(), batch_size=2, shard="auto", num_workers=2, engine="threads", seed=1) as loader:
    for epoch in range(2):
        for batch in loader:
            dist.barrier()
    found = loader.report(epoch=1, ranks=True)  # the first one has all that is imported
print(found.slow_rank, len(found.stats), [one["rank"] for one in found.stats])
dist.destroy_process_group()
"""


@needs_torch
@pytest.mark.timeout(180)
def test_two_real_ranks_find_the_slow_one(free_port):
    command = [sys.executable, "-c", RANKS]
    ranks = [
        subprocess.Popen([*command, str(rank), str(free_port)], stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    answers = [rank.communicate(timeout=150)[0].strip() for rank in ranks]
    assert answers == ["1 2 [0, 1]"] * 2


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
