"""How does the load of the loop's process grow with the number of Ray actors?

Workers only sleep, 50 ms a batch, so the machine's cores do not bound them: 1 to 32 actors, batches of 1 kB and 1 MB.
The limit is the number of actors divided by 50 ms. The processor time of the loop's process, its dispatcher and Ray's
threads included, tells at how many batches per second it is saturated.
"""

from __future__ import annotations

import logging
import time
import warnings
from itertools import islice
from typing import Any

import numpy as np
import ray

import headrace
from benchmarks.report import Report, Settings, progress

ACTORS = (1, 2, 4, 8, 16, 32)
SLEEP_S = 0.05


class Sleeping:
    """One batch a sample."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes

    def __len__(self) -> int:
        return 2**20

    def __getitem__(self, index: int) -> np.ndarray:
        time.sleep(SLEEP_S)
        return np.zeros(self.n_bytes, np.uint8)


def run(settings: Settings) -> Report:
    warnings.simplefilter("ignore")
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=2**30)
    actors = ACTORS[:3] if settings.quick else ACTORS
    rows = [row_of(n, n_bytes, settings) for n_bytes in (10**3, 10**6) for n in actors]
    ray.shutdown()
    return Report(rows)


def row_of(actors: int, n_bytes: int, settings: Settings) -> dict[str, Any]:
    progress(f"[ray_growth] {actors} actors, {n_bytes} bytes")
    engine = headrace.RayEngine(num_cpus=0, start_timeout=60)
    loader = headrace.DataLoader(
        Sleeping(n_bytes), batch_size=None, num_workers=actors, engine=engine, prefetch_factor=3, output="numpy"
    )
    iterator = iter(loader)
    for _ in range(3 * actors):  # until all actors are at work
        next(iterator)
    n = (20 if settings.quick else 40) * actors
    begun, computed = time.perf_counter(), time.process_time()
    for _ in islice(iterator, n):
        pass
    seconds, cpu = time.perf_counter() - begun, time.process_time() - computed
    iterator.close()
    limit = actors / SLEEP_S
    return {
        "actors": actors,
        "bytes": n_bytes,
        "batches/s": n / seconds,
        "of the limit": n / seconds / limit,
        "ms of CPU per batch": cpu / n * 1e3,
        "saturated at batches/s": n / cpu,
    }
