"""How many workers a dataset is worth, reckoned from the times of its stages: a function of its arguments alone."""

from __future__ import annotations

import math

from headrace.tuning.machine import Machine
from headrace.tuning.stages import Stages

_HAND_OVER_S = 3e-4
"""What a batch from a worker costs the loop, about; with what its bytes cost, below."""
_BYTES_PER_S = 4e9
_UNEVEN = 4.0
_WORTH_SMOOTHING_S = 1e-4
_PREFETCH = 2
_MEMORY_SHARE = 0.25


def reckon_workers(stages: Stages, machine: Machine, step_s: float = 0.0) -> int:
    """As many workers as keep the cores busy that the loop leaves over; 0 where handing over costs more than it saves.

    Args:
        step_s: what the training loop takes for a batch: no more workers than hide behind it are needed.
    """
    hand_over_s = stages.transport_s or _HAND_OVER_S + stages.batch_bytes / _BYTES_PER_S
    if stages.batch_s < 2 * hand_over_s:
        return 0
    if machine.cores == 1 and stages.cpu_share > 0.5:
        return 0  # there is no core that could work meanwhile
    spare = max(1, machine.cores - 1)
    workers = min(machine.cores, math.ceil(spare / max(stages.cpu_share, 1e-3)))  # who waits leaves its core to others
    if step_s > 0:
        workers = min(workers, math.ceil(1.25 * stages.batch_s / step_s))
    return max(1, min(workers, batches_in_memory(stages, machine) // _PREFETCH))


def reckon_prefetch(stages: Stages, machine: Machine, workers: int) -> int | None:
    """Batches to load ahead per worker; None where the default is right.

    More where some samples take much longer than others, less where memory is short.
    """
    if workers == 0:
        return None
    is_uneven = stages.unevenness > _UNEVEN and stages.fetch_s > _WORTH_SMOOTHING_S
    wanted = 2 * _PREFETCH if is_uneven else _PREFETCH
    chosen = max(1, min(wanted, batches_in_memory(stages, machine) // workers))
    return None if chosen == _PREFETCH else chosen


def batches_in_memory(stages: Stages, machine: Machine) -> int:
    """How many batches may lie ready, in a quarter of the memory that is free."""
    if machine.memory_free is None:
        return 2**20
    return int(_MEMORY_SHARE * machine.memory_free / machine.ranks / max(stages.batch_bytes, 1))
