"""Batch samplers whose epochs can be read at any place: how they iterate, count epochs, and continue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headrace.base.indices import Indices
from headrace.order.order import BatchOrder
from headrace.order.samplers import Sampler


class BatchOrderSampler(Sampler[list[int]]):
    """Yields the batches of an epoch as lists of indices. Subclasses write `seeded`.

    Guarantees: batches are a function of (arguments, seed, epoch) alone. Each iteration is the next epoch, beginning
    with 0, unless `set_epoch` or `load_state_dict` says otherwise. An iteration begins with its first batch, so that
    asking for an iterator and not using it, as loaders do, changes nothing.

    Args:
        seed: any int; another seed gives other batches.

    Raises:
        TypeError: `seed` is not an int.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = checked_int("seed", seed)
        self._start = _Place(0, 0)  # of the next iteration
        self._next = _Place(0, 0)  # the batch after the latest one
        self._running: int | None = None  # the epoch whose batches are being drawn
        self._latest: tuple[int, int, BatchOrder] | None = None

    def seeded(self, seed: int, epoch: int) -> BatchOrder:
        """The batches of one epoch, whatever this sampler's own seed and epoch are."""
        raise NotImplementedError(f"{type(self).__name__} must implement seeded.")

    def packed(self) -> Iterator[Indices]:
        """The batches of `__iter__` as arrays."""
        epoch, first = self._start
        self._start = _Place(epoch + 1, 0)
        self._running = epoch
        try:
            order = self._order(epoch)
            last = len(order) - 1
            for number in range(first, last + 1):
                self._next = _Place(epoch, number + 1) if number < last else _Place(epoch + 1, 0)
                yield order.batch(number)
        finally:
            self._running = None

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.packed():
            yield batch.tolist()

    def __len__(self) -> int:
        """The number of batches in the epoch that is being iterated, or else in the next."""
        return len(self._order(self._start.epoch if self._running is None else self._running))

    @property
    def epoch(self) -> int:
        """Of the next iteration."""
        return self._start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; those after it count on from there.

        The epoch of a state that has just been loaded continues where that state was taken.

        Raises:
            TypeError: `epoch` is not an int.
            ValueError: `epoch` is negative.
        """
        if checked_int("epoch", epoch, at_least=0) != self._start.epoch:
            self._start = self._next = _Place(epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """Where the latest iteration is: plain numbers, for JSON.

        A loader with workers draws batches ahead of the loop; this is where the drawing is.
        """
        return {"seed": self.seed, "epoch": self._next.epoch, "batch": self._next.batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin with exactly the batch that was next when the state was taken.

        Raises:
            KeyError, TypeError, ValueError: this is not a state, or one of another seed or of other data.
        """
        seed, epoch, batch = (checked_int(name, state[name]) for name in ("seed", "epoch", "batch"))
        if seed != self.seed:
            raise ValueError(f"The state must be of the same seed, got seed={seed}. Make the sampler with it.")
        if epoch < 0 or batch < 0 or (batch > 0 and batch >= len(self._order(epoch))):
            raise ValueError(
                f"The state must name a batch that this sampler has, got batch {batch} of epoch {epoch}. Is it of "
                "other data, or of other arguments?"
            )
        self._start = self._next = _Place(epoch, batch)

    def _order(self, epoch: int) -> BatchOrder:
        if self._latest is None or self._latest[:2] != (self.seed, epoch):
            self._latest = (self.seed, epoch, self.seeded(self.seed, epoch))
        return self._latest[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None, "_latest": None}


class _Place(NamedTuple):
    epoch: int
    batch: int


def checked_int(name: str, value: Any, *, at_least: int | None = None) -> int:
    """`value`, if it is an int of that size.

    Raises:
        TypeError: it is no int.
        ValueError: it is too small.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r:.200}.")
    if at_least is not None and value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}.")
    return value
