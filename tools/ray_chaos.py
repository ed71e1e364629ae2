"""Loads epochs on a Ray cluster while actors are killed, nodes removed and added, and the loop interrupted.

    python tools/ray_chaos.py --epochs 200 --seed 1

Every epoch's batches must be those of an undisturbed run. Prints the counts of faults; exits with 1 at the first
difference.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter

import ray
from ray.cluster_utils import Cluster

from headrace import DataLoader, RayEngine
from tests.ray.conftest import HEAD, NODE
from tests.ray.data import Slow, engine_of, plain

_NODES = 2  # besides that of the loop, which must stay


class Faults:
    """Does harm, and counts it."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._rng = rng
        self._kinds = ["kill", "ray.kill", "kill", "ray.kill", "node", "interrupt"]

    def strike(self, iterator: object) -> None:
        """One fault, at once."""
        kind = self._rng.choice(self._kinds)
        members = [m for m in list(engine_of(iterator)._dispatcher._members.values()) if m.place is not None]
        if kind == "interrupt":
            self.counts[kind] += 1
            signal.raise_signal(signal.SIGINT)
        elif kind == "node" and len(self._cluster.worker_nodes) < _NODES:
            self._cluster.add_node(wait=False, **NODE)
            self.counts["node added"] += 1
        elif kind == "node":
            lost = self._rng.choice(sorted(self._cluster.worker_nodes, key=str))
            self._cluster.remove_node(lost, allow_graceful=False)
            self.counts["node removed"] += 1
        elif members:
            member = self._rng.choice(members)
            self.counts[kind] += 1
            if kind == "kill":
                with contextlib.suppress(ProcessLookupError):  # it may have died a moment ago
                    os.kill(member.place.pid, signal.SIGKILL)
            else:
                ray.kill(member.handle)


def load_epoch(loader: DataLoader, faults: Faults, rng: random.Random, n_faults: int) -> list[object]:
    """The batches of an epoch, of a loader that is resumed from its state after each interrupt."""
    found: list[object] = []
    strikes = sorted(rng.sample(range(1, 28), n_faults))
    while True:
        iterator = iter(loader)
        try:
            for batch in iterator:
                found.append(plain(batch))
                if strikes and len(found) >= strikes[0]:
                    strikes.pop(0)
                    faults.strike(iterator)
            return found
        except KeyboardInterrupt:
            state = json.loads(json.dumps(loader.state_dict()))
            del iterator
            loader.load_state_dict(state)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=2, help="in each epoch")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("ray").setLevel(logging.ERROR)
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, **HEAD})
    for _ in range(_NODES):
        cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    rng = random.Random(options.seed)
    faults = Faults(cluster, rng)

    def make(**others: object) -> DataLoader:
        return DataLoader(Slow(120, 0.003), 4, shuffle=True, seed=options.seed, output="numpy", num_workers=3, **others)

    begun = time.monotonic()
    wrong = 0
    loader = make(engine=RayEngine(num_cpus=1, start_timeout=60), on_worker_death="restart", persistent_workers=True)
    undisturbed = make()
    for epoch in range(options.epochs):
        expected = [plain(batch) for batch in undisturbed]
        found = load_epoch(loader, faults, rng, options.faults)
        if found != expected:
            print(f"Epoch {epoch}: {len(found)} batches, {len(expected)} expected; they differ.")
            wrong += 1
        if epoch % 10 == 9:
            seconds = time.monotonic() - begun
            print(f"{epoch + 1} epochs in {seconds:.0f} s, {wrong} wrong; {dict(faults.counts)}", flush=True)
    loader.close()
    time.sleep(4)
    ray.shutdown()
    cluster.shutdown()
    print(f"{options.epochs} epochs, {wrong} wrong; faults: {dict(faults.counts)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
