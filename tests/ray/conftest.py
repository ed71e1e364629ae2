"""A real Ray cluster of three small nodes, started once; and a guard that nothing is left on it after a test."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import threading
import time

import pytest

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]

HEAD = {
    "include_dashboard": False,
    "_system_config": {  # so that a dead node is noticed in seconds
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
        "health_check_initial_delay_ms": 0,
    },
}
NODE = {"num_cpus": 3, "object_store_memory": 150 * 2**20}


def pytest_collection_modifyitems(items):
    """All Ray tests share one cluster, so they run in one process: `make test-ray`."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        for item in items:
            if "/ray/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="Ray tests share a cluster: run them with -n 0"))


@pytest.fixture(scope="session")
def cluster():
    """Three nodes; this process is on the first, which must stay. Tests may remove others, and add some."""
    import ray
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.ERROR)
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, **HEAD})
    for _ in range(2):
        cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    ray.get(ray.remote(lambda: 0).options(num_cpus=0).remote())
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(autouse=True)
def nothing_left_behind(cluster):
    """An actor, an object in the store, or a thread that is left behind fails the test that left it."""
    import ray

    yield
    gc.collect()
    deadline = time.monotonic() + 20
    while (left := what_is_left(ray)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def what_is_left(ray):
    total, free = ray.cluster_resources(), ray.available_resources()
    left = {kind: total[kind] - free.get(kind, 0) for kind in ("CPU", "object_store_memory")}
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")]
    return {**{kind: amount for kind, amount in left.items() if amount}, **({"threads": threads} if threads else {})}
