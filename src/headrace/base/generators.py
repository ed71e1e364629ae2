"""The global random generators that user code draws from: looked at, saved, restored and seeded one by one."""

from __future__ import annotations

import ctypes
import random
from typing import Any, Protocol

import numpy as np

from headrace.base.optional import loaded


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
