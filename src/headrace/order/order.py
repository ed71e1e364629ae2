"""Orders that can be read at any place: what a seed makes of a sampler."""

from __future__ import annotations

from typing import Protocol

from headrace.base.indices import Indices


class Order(Protocol):
    """The sample indices of one epoch, as a function of their position.

    Guarantees: pure and picklable; the same on every process, machine and day.
    """

    def __len__(self) -> int: ...

    def at(self, positions: Indices) -> Indices:
        """The indices at these positions, each of which lies in [0, len)."""
        ...


class BatchOrder(Protocol):
    """The batches of one epoch, as a function of their number.

    Guarantees: pure and picklable; the same on every process, machine and day.
    """

    def __len__(self) -> int: ...

    def batch(self, number: int) -> Indices:
        """The sample indices of batch `number`, which lies in [0, len)."""
        ...
