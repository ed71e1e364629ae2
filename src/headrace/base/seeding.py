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

    What is not imported yet is seeded when it is: a worker that needs no torch does not wait for it.
    """
    seed = base_seed + worker
    random.seed(seed)

    def seed_numpy(numpy_random: ModuleType) -> None:
        words = [worker, base_seed & _LOW_32_BITS, base_seed >> 32, 0]
        numpy_random.seed(numpy_random.SeedSequence(words).generate_state(4))

    def seed_torch(torch: ModuleType) -> None:
        if _has_accelerators(torch):
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)  # the same, without 3 ms of looking for devices
        torch.set_num_threads(1)  # the workers share the cores; and a forked thread pool would hang

    after_import("numpy.random", seed_numpy)  # NumPy imports it when it is first used
    after_import("torch", seed_torch)
    return seed


def _has_accelerators(torch: ModuleType) -> bool:
    """Whether this torch was built for any."""
    version = torch.version
    named = any(getattr(version, name, None) for name in ("cuda", "hip", "xpu"))
    return named or torch.backends.mps.is_built()


def generator_states() -> States:
    """The states of the global generators, as plain values; None for what is not imported."""
    torch = loaded("torch")
    torch_state = None if torch is None else torch.get_rng_state().numpy().tobytes()
    numpy_random, numpy_state = loaded("numpy.random"), None
    if numpy_random is not None:
        name, keys, *rest = numpy_random.get_state()
        numpy_state = (name, keys.tobytes(), *rest)
    return random.getstate(), numpy_state, torch_state


def restore_generators(states: States) -> None:
    """Set the global generators to what `generator_states` returned."""
    python_state, numpy_state, torch_state = states
    random.setstate(python_state)
    if numpy_state is not None:
        name, keys, *rest = numpy_state
        np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))
    if torch_state is not None:

        def restore_torch(torch: ModuleType) -> None:
            torch.set_rng_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))

        after_import("torch", restore_torch)
