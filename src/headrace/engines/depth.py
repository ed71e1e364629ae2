"""How far worker processes load ahead."""

from __future__ import annotations

from time import perf_counter

_DEEPEST = 128  # times as many tasks as usual are in flight, of quick batches
_LOOK_AFTER = 32  # times as many batches as usual are in flight, whether they are quick
_QUICK_S = 5e-4  # per batch, the time of the training loop included
_MOST_BYTES = 2**25  # of such batches


class Depth:
    """How many tasks may be in flight: more while batches are quick and small, so that no side waits at every batch.

    Attributes:
        most: it is never more.
        taken_in: how many batches have come since it was last looked at; told by the engine.

    Args:
        usual: the least.
        deepens: whether it may be more.
    """

    def __init__(self, usual: int, *, deepens: bool) -> None:
        self.most = usual * (_DEEPEST if deepens else 1)
        self._usual = usual
        self._look_after = _LOOK_AFTER * usual if deepens else float("inf")
        self.start()

    def start(self) -> None:
        self.taken_in = 0
        self._looked_at = perf_counter()
        self._leased_bytes = 0  # in all, as of then

    def is_due(self) -> bool:
        """Whether enough batches have come to look at it again."""
        return self.taken_in > self._look_after

    def adapted(self, leased_bytes: int) -> int:
        """What it is from now on, given how much memory all batches took that have ever come."""
        now = perf_counter()
        are_quick = now - self._looked_at < _QUICK_S * self.taken_in
        affordable = _MOST_BYTES * self.taken_in // max(leased_bytes - self._leased_bytes, 1)
        self._looked_at, self.taken_in, self._leased_bytes = now, 0, leased_bytes
        return max(self._usual, min(self.most, affordable) if are_quick else 0)
