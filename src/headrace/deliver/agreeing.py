"""Batches of ranks that end an epoch together: before each step, all of them agree that every one has a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from headrace.base.errors import RankError

FAILED, ENDED, READY = range(3)
"""What a rank tells before a step: the lowest that any of them tells counts."""


class Agreement(Protocol):
    """Knows what all ranks tell.

    Attributes:
        is_open: whether other ranks may wait for this one: an epoch runs here.
    """

    is_open: bool

    def settle(self, status: int) -> tuple[int, int]:
        """Tell the others, wait for what they tell, and return the lowest, and which rank told it.

        Raises:
            RankError: one of them is gone.
        """

    def tell(self, status: int) -> None:
        """Tell the others, and do not wait for them."""


class PeekedBatches(Protocol):
    """The batches of one rank."""

    plan: Any

    @property
    def latest(self) -> int:
        """The number of the batch that came last."""

    def peek(self) -> Any:
        """Wait for what comes next: "batch", "error" or "end"."""

    def forgo(self, n: int | None = None) -> None:
        """Leave out the next n batches; None for all that are left."""

    def break_off(self, error: BaseException) -> None:
        """A batch could not be taken."""

    def __next__(self) -> Any: ...

    def close(self) -> None:
        """Give up the rest, and end what was started for it."""


class AgreedBatches:
    """The batches of an epoch, until any rank has no more.

    Guarantees: all ranks get as many. Where a batch raises on one rank, the others raise a `RankError` at the same step
    instead of waiting for it, and all of them may go on with the next one. A rank that leaves the epoch ends it for
    all.
    """

    ready: Iterator[Any] | None = None  # nothing may be taken without asking

    def __init__(self, batches: PeekedBatches, agreement: Agreement) -> None:
        self.plan = batches.plan
        self._batches = batches
        self._agreement = agreement
        agreement.is_open = True

    @property
    def latest(self) -> int:
        return self._batches.latest

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            RankError: another rank has an error in its place, or is gone.
            StopIteration: the epoch is over, here or on another rank.
        """
        if not self._agreement.is_open:
            raise StopIteration
        try:
            found = self._batches.peek()
        except BaseException as error:
            self._tell(FAILED if isinstance(error, Exception) else ENDED)
            raise
        if found == "error":
            self._tell(FAILED)
            return next(self._batches)  # raises it
        lowest, rank = self._agreement.settle(READY if found == "batch" else ENDED)
        if lowest == READY:
            return next(self._batches)
        if lowest == ENDED or found == "end":
            self._agreement.is_open = False
            self._batches.forgo()
            raise StopIteration
        self._agreement.is_open = self.plan.survives_errors
        self._batches.forgo(1 if self.plan.survives_errors else None)
        raise RankError(
            f"Rank {rank} raised an error in place of its next batch; this rank leaves out its own, so that all stay "
            "in step. The log of that rank tells why."
        )

    def _tell(self, status: int) -> None:
        self._agreement.tell(status)
        self._agreement.is_open = status == FAILED and self.plan.survives_errors

    def break_off(self, error: BaseException) -> None:
        self._batches.break_off(error)

    def close(self) -> None:
        leave(self._agreement)
        self._batches.close()


def leave(agreement: Agreement | None) -> None:
    """Let the other ranks know that this one has left its epoch, if it has one."""
    if agreement is not None and agreement.is_open:
        agreement.is_open = False
        with suppress(Exception):  # the others may be gone, too
            agreement.tell(ENDED)
