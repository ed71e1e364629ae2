"""Measures headrace against torch: rates over a steady stretch, interleaved, by the wall clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace.base.optional import import_extra
from headrace.cli.torch_workloads import Workload, workloads
from headrace.loader import DataLoader

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch", "headrace bench")

_WARM_BATCHES = 4
_WORKERS = (0, 2)


@dataclass(frozen=True)
class Effort:
    """How much is measured: so many rounds, in each of which every contestant runs for so many seconds."""

    rounds: int
    seconds: float


QUICK = Effort(3, 0.1)
THOROUGH = Effort(7, 1.2)


@dataclass(frozen=True)
class Result:
    """Medians of one workload, in samples per second.

    Attributes:
        ratio: the median over rounds of headrace's rate by torch's: a noisy neighbour slows both sides of a round.
    """

    workload: str
    workers: int
    torch: float
    headrace: float
    ratio: float


def measure(effort: Effort, tell: Callable[[str, float], None]) -> Iterator[Result]:
    """One result after the other.

    Args:
        tell: is called with what is measured next, and how much has been, from 0 to 1.
    """
    plan = [(workload, workers) for workload in workloads() for workers in _WORKERS]
    for i, (workload, workers) in enumerate(plan):
        tell(f"{workload.name}, {workers} workers", i / len(plan))
        yield _compare(workload, workers, effort)


def _compare(workload: Workload, workers: int, effort: Effort) -> Result:
    dataset = workload.make()
    options: dict[str, Any] = {
        "batch_size": workload.batch_size,
        "shuffle": workload.shuffle,
        "num_workers": workers,
    }
    theirs, ours = torch.utils.data.DataLoader(dataset, **options), DataLoader(dataset, **options)
    rounds = [
        (_rate(theirs, workload, effort.seconds), _rate(ours, workload, effort.seconds)) for _ in range(effort.rounds)
    ]
    their_rates, our_rates = zip(*rounds, strict=True)
    ratio = statistics.median(b / a for a, b in rounds)
    return Result(workload.name, workers, statistics.median(their_rates), statistics.median(our_rates), ratio)


def _rate(loader: Any, workload: Workload, seconds: float) -> float:
    """Samples per second, after the workers have started. Datasets are long enough for any stretch."""
    batches = iter(loader)
    for _ in range(_WARM_BATCHES):
        next(batches)
    n, started = 0, perf_counter()
    while (elapsed := perf_counter() - started) < seconds:
        if next(batches, None) is None:
            batches = iter(loader)
        n += 1
    return n * workload.batch_size / elapsed
