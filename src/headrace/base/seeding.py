"""The random generators of a worker: seeded as torch seeds them, saved and restored."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from headrace.base.after_import import after_import
from headrace.base.optional import loaded

States: TypeAlias = tuple[Any, Any, bytes | None]

_LOW_32_BITS = 0xFFFFFFFF


def seed_worker(base_seed: int, worker: int) -> int:
    """Seed `random`, NumPy and torch as a worker of torch's DataLoader does; returns the worker's seed.

    Torch is seeded when it is imported, if it is not yet: a worker that needs no torch does not wait for it.
    """
    seed = base_seed + worker
    random.seed(seed)
    words = np.random.SeedSequence([worker, base_seed & _LOW_32_BITS, base_seed >> 32, 0]).generate_state(4)
    np.random.seed(words)

    def seed_torch(torch: ModuleType) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # the workers share the cores; and a forked thread pool would hang

    after_import("torch", seed_torch)
    return seed


def generator_states() -> States:
    """The states of the global generators, as plain values."""
    torch = loaded("torch")
    torch_state = None if torch is None else torch.get_rng_state().numpy().tobytes()
    legacy: Any = np.random.get_state()
    name, keys, position, has_gauss, gauss = legacy
    return random.getstate(), (name, keys.tobytes(), position, has_gauss, gauss), torch_state


def restore_generators(states: States) -> None:
    """Set the global generators to what `generator_states` returned."""
    python_state, (name, keys, *rest), torch_state = states
    random.setstate(python_state)
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))
    if torch_state is not None:

        def restore_torch(torch: ModuleType) -> None:
            torch.set_rng_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))

        after_import("torch", restore_torch)
