"""Random generators: the keys they start from, the global ones that user code draws from, and those of a worker."""

from __future__ import annotations

import ctypes
import random
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np

from headrace.base.after_import import after_import
from headrace.base.optional import loaded


def derive_key(seed: int, epoch: int, purpose: str) -> int:
    """A key of 128 bits for one purpose; those of neighbouring seeds and epochs have nothing in common.

    Args:
        seed: any int.
        epoch: any int.
    """
    from hashlib import blake2b

    digest = blake2b(f"{seed},{epoch},{purpose}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


class GlobalGenerator(Protocol):
    """One of them. What is not imported has no state: it is None, and nothing is done to it."""

    def glance(self) -> Any:
        """Something that differs if anybody has drawn from it; quicker than `save`."""
        ...

    def settle(self) -> None:
        """Let go of numbers that were drawn ahead, which `glance` would not miss."""
        ...

    def save(self) -> Any: ...

    def restore(self, saved: Any) -> None: ...

    def seed(self, key: int) -> None: ...


class PythonGenerator:
    """`random`."""

    def glance(self) -> Any:
        return random.getstate()

    def settle(self) -> None:
        """The second of two normal numbers is in the state that `glance` sees."""

    def save(self) -> Any:
        return random.getstate()

    def restore(self, saved: Any) -> None:
        random.setstate(saved)

    def seed(self, key: int) -> None:
        random.seed(key)


class NumpyGenerator:
    """The legacy functions `numpy.random.rand` and so on."""

    _STATE_BYTES = 2500  # of a Mersenne twister: 624 words and the position

    def glance(self) -> Any:
        """The memory itself, in a fiftieth of the time that `get_state` takes."""
        numpy_random = loaded("numpy.random")
        if numpy_random is None:
            return None
        generator = numpy_random.get_bit_generator()
        if type(generator).__name__ != "MT19937":  # somebody has set another one
            return repr(generator.state)
        return ctypes.string_at(generator.ctypes.state_address, self._STATE_BYTES)

    def settle(self) -> None:
        """Normal numbers are drawn in pairs, and the second one is kept elsewhere: use it up."""
        if loaded("numpy.random") is None:
            return
        before = self.glance()
        np.random.standard_normal()
        if self.glance() != before:  # there was none, but now there is
            np.random.standard_normal()

    def save(self) -> Any:
        numpy_random = loaded("numpy.random")
        return None if numpy_random is None else numpy_random.get_state(legacy=False)

    def restore(self, saved: Any) -> None:
        if saved is not None:
            np.random.set_state(saved)

    def seed(self, key: int) -> None:
        np.random.seed(key & 0xFFFFFFFF)  # a seed of more than 32 bits takes five times as long


class TorchGenerator:
    """torch's default generator, on the CPU."""

    def glance(self) -> Any:
        torch = loaded("torch")
        return None if torch is None else torch.default_generator.get_state().numpy().tobytes()

    def settle(self) -> None:
        """All numbers come straight from the state."""

    def save(self) -> Any:
        torch = loaded("torch")
        return None if torch is None else torch.default_generator.get_state()

    def restore(self, saved: Any) -> None:
        torch = loaded("torch")
        if saved is not None and torch is not None:
            torch.default_generator.set_state(saved)

    def seed(self, key: int) -> None:
        torch = loaded("torch")
        if torch is not None:
            torch.default_generator.manual_seed(key & 2**63 - 1)


GENERATORS: tuple[GlobalGenerator, ...] = (PythonGenerator(), NumpyGenerator(), TorchGenerator())


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
