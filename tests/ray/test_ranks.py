"""Ranks on one cluster: every sample comes once, though a node is lost and others resume; and scripts of users."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Audit, DataLoader
from tests.ray.conftest import NODE
from tests.ray.data import Slow, plain
from tools.ray_chaos import Faults, load_epoch

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.filterwarnings("ignore:.*Another one takes its place")


def loaders(world, workers):
    return [
        DataLoader(
            Slow(180, 0.01),
            3,
            shuffle=True,
            seed=7,
            shard=(rank, world),
            num_workers=workers,
            engine="ray",
            on_worker_death="restart",
            output="numpy",
        )
        for rank in range(world)
    ]


def test_two_ranks_lose_a_node_and_three_resume_and_every_sample_comes_once(cluster):
    first = loaders(2, 3)
    audits = [loader.audit(full=True) for loader in first]
    iterators = [iter(loader) for loader in first]
    for step in range(12):
        for iterator in iterators:
            next(iterator)
        if step == 4:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    states = [loader.state_dict() for loader in first]
    iterators.clear()
    del iterator
    for loader in first:
        loader.close()
    cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    parts = [audit.state_dict() for audit in audits]
    for loader in loaders(3, 2):
        audit = loader.audit(full=True)
        loader.load_state_dict(states[0])
        list(loader)
        parts.append(audit.state_dict())
    merged = Audit.merged(parts)
    merged.check()
    assert merged.proven == [0]


def test_a_few_epochs_of_chaos(cluster):
    rng = random.Random(3)
    faults = Faults(cluster, rng)
    options = {"batch_size": 4, "shuffle": True, "seed": 1, "output": "numpy", "num_workers": 3}
    undisturbed = DataLoader(Slow(120, 0.002), **{**options, "num_workers": 0})
    disturbed = DataLoader(
        Slow(120, 0.002), **options, engine="ray", on_worker_death="restart", persistent_workers=True
    )
    for _ in range(5):
        expected = [plain(batch) for batch in undisturbed]
        assert load_epoch(disturbed, faults, rng, 2) == expected
    disturbed.close()
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    assert faults.counts.total() == 10


def run_example(name, cluster):
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": f"{ROOT / 'src'}"}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "ray" / name],
        capture_output=True,
        text=True,
        timeout=110,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_remote_workers(cluster):
    lines = run_example("remote_workers.py", cluster)
    assert lines[:2] == ["the same batches: True", "resumed on processes: True"]


def test_ranks_with_remote_workers(cluster):
    assert run_example("ranks.py", cluster)[-1] == "24 samples, each once"


def test_shared_pool(cluster):
    assert run_example("shared_pool.py", cluster)[-1] == "validated 3 times, 48 samples each"


def test_inside_an_actor(cluster):
    import ray

    @ray.remote(num_cpus=1)
    def train():
        loader = DataLoader(range(20), 4, num_workers=2, engine="ray", collate_fn=list)
        return [number for batch in loader for number in batch]

    assert ray.get(train.remote()) == list(range(20))


def test_the_doctor_looks_at_the_cluster(cluster):
    from headrace.cli.doctor import check_cluster

    found = list(check_cluster({"RAY_ADDRESS": cluster.address}))
    assert found[0].what == "Ray has 3 nodes with 9 CPU, and room for 9 workers of 1 CPU now"
    assert "of batches may be on their way in the smallest object store" in found[1].what
    assert list(check_cluster({})) == []
