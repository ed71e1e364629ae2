"""Random numbers of the user's own sequences: the same whoever reads them, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.base.generators import GENERATORS, GlobalGenerator, derive_key
from headrace.base.randomness import enter_sample, own_samples, rng


class KeyedDraws:
    """Keys what is drawn by the place of an item, or of a sequence that is opened.

    `headrace.rng` belongs to that place, and the global generators are seeded for it. Both take longer than most items
    do, so it is only done for what is drawn from, which is found out by looking: see `has_missed`.

    Args:
        shares_generators: whether other threads draw from the global generators: then they are left alone.
        gives_back: whether they are the training loop's: then they are left as they were.
    """

    def __init__(self, seed: int, *, shares_generators: bool, gives_back: bool) -> None:
        self._seed = seed
        self._gives_back = gives_back and not shares_generators
        self._unused: list[GlobalGenerator] = [_SampleGenerator(), *(() if shares_generators else GENERATORS)]
        self._used: list[GlobalGenerator] = []
        self._before: list[Any] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """While a block is read."""
        saved = [(generator, generator.save()) for generator in GENERATORS] if self._gives_back else []
        try:
            with own_samples():
                enter_sample(0)
                self._look()
                yield
        finally:
            for generator, state in saved:
                generator.restore(state)

    def _look(self) -> None:
        for generator in self._unused:
            generator.settle()
        self._before = [generator.glance() for generator in self._unused]

    def has_missed(self) -> bool:
        """Whether something was drawn from that had not been keyed: from now on it is; read the block again."""
        missed = [one for one, then in zip(self._unused, self._before, strict=True) if one.glance() != then]
        self._used += missed
        self._unused = [generator for generator in self._unused if generator not in missed]
        self._look()
        return bool(missed)

    def opening(self, epoch: int, position: int, step: int) -> None:
        """What is drawn from here on belongs to the sequence whose first item is number `step` of a position."""
        self._enter(epoch, f"position {position}, sequence at {step}")

    def ticks(self, epoch: int, position: int, step: int, n: int) -> Iterable[Any]:
        """What is drawn after a tick belongs to an item, from number `step` of a position on."""
        return self._ticks(epoch, position, step, n) if self._used else range(n)

    def _ticks(self, epoch: int, position: int, step: int, n: int) -> Iterator[None]:
        for number in range(step, step + n):
            self._enter(epoch, f"position {position}, item {number}")
            yield

    def _enter(self, epoch: int, purpose: str) -> None:
        if self._used:
            key = derive_key(self._seed, epoch, purpose)
            for generator in self._used:
                generator.seed(key)


class _SampleGenerator:
    """`headrace.rng`, as one of the generators that user code draws from."""

    def glance(self) -> Any:
        return repr(rng().bit_generator.state)

    def settle(self) -> None:
        """All numbers come straight from the state."""

    def save(self) -> Any:
        """`own_samples` keeps it."""

    def restore(self, saved: Any) -> None:
        """Likewise."""

    def seed(self, key: int) -> None:
        enter_sample(key)
