"""What `iter(loader)` returns."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from headrace.base.errors import warn_user
from headrace.deliver.skipped import SkippedSamples


@dataclass(frozen=True, slots=True)
class PromisedLength:
    """What `len(loader)` said of an iterable dataset."""

    dataset: Any
    samples: int


class EpochBatches(Protocol):
    """Where the batches of an epoch come from."""

    plan: Any

    @property
    def latest(self) -> int:
        """The number of the batch that came last."""

    def __next__(self) -> Any: ...

    def close(self) -> None:
        """Give up the rest, and end what was started for it."""


class Counts(Protocol):
    """Knows how many batches epochs have."""

    def n_batches(self, epoch: int) -> int: ...


class Timer(Protocol):
    """Hears of the turns of the loop: of those with `batches & mask == 0`, and when one that is open is over."""

    batches: int
    mask: int

    @property
    def open(self) -> Any:
        """The turn that is being timed; None if there is none."""

    def ask(self) -> None:
        """A batch is asked for."""

    def arrive(self) -> None:
        """It is there, and still to be pinned, or moved to a device."""

    def give(self, number: int, batch: Any) -> None:
        """The loop gets it."""

    def stop(self) -> None:
        """There is no further one."""

    def end(self) -> None:
        """What was started for the epoch has ended."""


class LoaderIterator:
    """The batches of one epoch, or with persistent workers of one after the other.

    Args:
        batches: where they come from.
        counts: knows how many there are.
        skipped: who keeps account of the samples that are left out of the batches, if any may be.
        stays: whether workers are used again for the next epoch.
        finish: applied to each batch at last, e.g. to pin its memory.

    Attributes:
        promise: the length that an iterable dataset was asked for, to warn if it yields more.
        timer: hears of the turns of the loop.
    """

    def __init__(
        self,
        batches: EpochBatches,
        counts: Counts,
        skipped: SkippedSamples | None = None,
        *,
        stays: bool = False,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        self._counts = counts
        self._finish = finish
        self._stays = stays
        self.begin(batches, skipped)

    def begin(self, batches: EpochBatches, skipped: SkippedSamples | None = None) -> None:
        """Start over with the batches of another epoch."""
        self._batches = batches
        self._skipped = skipped
        self._delivered = 0
        self.timer: Timer | None = None
        self.promise: PromisedLength | None = None

    @property
    def plan(self) -> Any:
        """Of the epoch."""
        return self._batches.plan

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: what the user's code raised for this batch; the next call goes on with the one after it.
            TooManyBadSamplesError: all batches of the epoch were left out.
            StopIteration: the epoch is over.
        """
        timer = self.timer
        is_timed = timer is not None and not (timer.batches & timer.mask and timer.open is None)
        if timer is not None and is_timed:
            timer.ask()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end(timer)
            raise
        if self._finish is not None:
            if timer is not None:
                timer.arrive()
            batch = self._finish(batch)
        self._delivered += 1
        if timer is not None:
            timer.batches += 1
            if is_timed:
                timer.give(self._batches.latest, batch)
        if self.promise is not None and self._delivered > self.promise.samples:
            self._warn_of_length(self.promise)
        return batch

    def _end(self, timer: Timer | None) -> None:
        self.plan.is_over = True
        if timer is not None:
            timer.stop()
        if not self._stays:
            self._batches.close()
        if timer is not None:
            timer.end()
        if self._skipped is not None:
            self._skipped.check_epoch(self.plan.first + self._delivered)

    def close(self) -> None:
        """End the epoch here, and the workers too."""
        self._batches.close()

    def _warn_of_length(self, promise: PromisedLength) -> None:
        advice = (
            " With several workers, each iterates over its own copy of the dataset: let it read its own part only, by "
            "headrace.get_worker_info()."
        )
        advice = advice if self.plan.workers > 1 else ""
        warn_user(
            f"Length of IterableDataset {promise.dataset} was reported to be {promise.samples} (when accessing "
            f"len(dataloader)), but {self._delivered} samples have been fetched.{advice}"
        )

    def __len__(self) -> int:
        return self._counts.n_batches(self.plan.epoch)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled; pickle the loader.")


class OpenIterators(weakref.WeakSet[LoaderIterator]):
    """The iterators of a loader that somebody still holds. They belong to this process: a pickled copy has none."""

    def close(self) -> None:
        """End the epochs of all of them, and their workers."""
        for iterator in list(self):
            iterator.close()
        self.clear()

    def __reduce__(self) -> Any:
        return OpenIterators, ()
