"""Ranks on one cluster: every sample comes once, though a node is lost and others resume; and scripts of users."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Audit, DataLoader, RayPool
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


class Pids(Slow):
    """Tells which worker made each sample."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "pid": os.getpid()}


def load_rank(pool, rank, fails_after=None):
    loader = DataLoader(Pids(60, 0.005), 3, shuffle=True, seed=5, shard=(rank, 2), engine=pool, output="numpy")
    found = []
    for number, batch in enumerate(loader):
        found.append(batch)
        if number == fails_after:
            os.kill(os.getpid(), signal.SIGKILL)
    pool.close()
    return found


def without_pids(batches):
    return [plain({name: value for name, value in batch.items() if name != "pid"}) for batch in batches]


def test_ranks_share_a_pool_by_its_name(cluster):
    import ray

    pool = RayPool(2, name="ranks", num_cpus=1)
    load = ray.remote(num_cpus=0, max_retries=0)(load_rank)
    found = ray.get([load.remote(pool, rank) for rank in range(2)])
    for rank in range(2):
        alone = DataLoader(Slow(60, 0), 3, shuffle=True, seed=5, shard=(rank, 2), output="numpy")
        assert without_pids(found[rank]) == [plain(batch) for batch in alone]
    used = [{int(pid) for batch in batches for pid in batch["pid"]} for batches in found]
    assert len(used[0] | used[1]) <= 4  # two, unless one rank had ended before the other began
    assert "name='ranks'" in repr(pool)


def test_a_rank_that_is_killed_takes_nothing_from_the_others_of_a_pool(cluster):
    import ray

    pool = RayPool(2, name="with-a-loss", num_cpus=1)
    alone = DataLoader(Slow(60, 0), 3, shuffle=True, seed=5, shard=(0, 2), output="numpy")
    load = ray.remote(num_cpus=0, max_retries=0)(load_rank)
    lost, good = load.remote(pool, 1, fails_after=2), load.remote(pool, 0)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(lost)
    assert without_pids(ray.get(good)) == [plain(batch) for batch in alone]
    for slot in range(2):  # else they would wait for a minute that the lost rank says something
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(f"with-a-loss/{slot}/0", namespace="headrace"))


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
